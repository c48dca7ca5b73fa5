// CurlMulti: runs transfers of libcurl on a loop, without a further thread, through
// curl_multi_socket_action(). It keeps connections open for later transfers.
//
// Owned through shared_ptr; members are called on the loop, and callbacks run there. The caller owns the easy
// handles. It must call stop() before it destroys a handle that is in flight.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/unique_function.h>

#include <asio/io_context.hpp>

#include <curl/curl.h>

#include <map>
#include <memory>

namespace weft::rpc::detail {

struct CurlDelete {
  void operator()(CURL* transfer) const { curl_easy_cleanup(transfer); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

class CurlMulti : public std::enable_shared_from_this<CurlMulti> {
 public:
  using Done = UniqueFunction<void(CURLcode)>;

  explicit CurlMulti(std::shared_ptr<Loop> loop);  // an AsioLoop
  ~CurlMulti();

  // Starts the transfer. `done` runs after start() has returned, and may call all members.
  void start(CURL* transfer, Done done);
  void stop(CURL* transfer);  // `done` does not run; no effect if the transfer is not in flight

 private:
  struct Watched;

  static int on_socket(CURL*, curl_socket_t socket, int wanted, void* self, void*) noexcept;
  static int on_timer(CURLM*, long milliseconds, void* self) noexcept;
  void wait(curl_socket_t socket, const std::shared_ptr<Watched>& watched);
  void act(curl_socket_t socket, int event);

  const std::shared_ptr<Loop> loop_;
  asio::io_context& context_;
  std::map<CURL*, Done> transfers_;
  std::map<curl_socket_t, std::shared_ptr<Watched>> sockets_;
  Loop::TimerId timer_ = 0;
  CURLM* const multi_;
};

}  // namespace weft::rpc::detail
