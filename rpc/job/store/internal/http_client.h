// HttpClient: HTTP/1.1 POST to one of several equal servers, over persistent connections, by libcurl.
//
// The client uses one server until it fails, then the next. A request that was not sent is tried on all
// servers, and again after a pause, until its deadline. A request that may have been executed is repeated
// only if it is marked as repeatable. Failures are `unavailable` and name each tried server with its error;
// any reply of a server, whatever its status, is a response. Members are called on the loop, and callbacks
// run there. close() fails the pending calls with shut_down. After close(), no callback runs.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc::detail {

class CurlMulti;

struct HttpAddress {  // of a server
  std::string host, port;
  std::string text() const;  // "host:port"
};

struct HttpClientOptions {
  std::size_t connections = 8;              // the maximum at a time, not counting streams
  std::size_t max_body = 64 * 1024 * 1024;  // the maximum size of a response that is stored
};

struct HttpRequest {
  std::string target, body;
  Clock::time_point until;              // the deadline
  std::chrono::nanoseconds attempt{0};  // the maximum time for one server; 0: no limit
  bool repeatable = false;              // the request may be executed twice
  std::optional<std::size_t> server;    // the index of the only server to use; nullopt: any
};

struct HttpResponse {
  unsigned status = 0;
  std::string body;
};

class HttpClient : public std::enable_shared_from_this<HttpClient> {
 public:
  using CallId = std::uint64_t;
  using Done = UniqueFunction<void(Result<HttpResponse>&&)>;
  using Part = UniqueFunction<void(std::string_view)>;

  HttpClient(std::shared_ptr<Loop> loop, std::vector<HttpAddress> servers, HttpClientOptions options);
  ~HttpClient();

  CallId post(HttpRequest request, Done done) { return begin(std::move(request), {}, std::move(done)); }
  // For a response without an end: its body is passed to `part` as it arrives, and is not stored. After the
  // first part, `until` and `attempt` of the request no longer apply. `ended` receives the result (for a
  // status other than 200, with the body), or the exception that `part` threw.
  CallId stream(HttpRequest request, Part part, Done ended) {
    return begin(std::move(request), std::move(part), std::move(ended));
  }
  void stop(CallId call);  // no further callbacks
  void next_server() { current_ = (current_ + 1) % servers_.size(); }
  std::size_t server_of(CallId stream) const;  // the server's index, once a part has been received
  void close();

 private:
  struct Call;
  CallId begin(HttpRequest request, Part part, Done done);
  void start(const std::shared_ptr<Call>& call);
  void pass_on(const std::shared_ptr<Call>& call);
  void transferred(const std::shared_ptr<Call>& call, int result);
  void timed_out(const std::shared_ptr<Call>& call);
  void failed(const std::shared_ptr<Call>& call, const std::string& reason);
  void finish(const std::shared_ptr<Call>& call, Result<HttpResponse>&& result);
  void release(Call& call);  // releases the transfer, the timer and the place of the call
  void next_in_line();
  void set_timer(const std::shared_ptr<Call>& call, Clock::time_point when,
                 void (HttpClient::*then)(const std::shared_ptr<Call>&));

  const std::shared_ptr<Loop> loop_;
  const std::vector<HttpAddress> servers_;
  const HttpClientOptions options_;
  std::size_t current_ = 0;           // the server that is used until it fails
  std::shared_ptr<CurlMulti> multi_;  // for new transfers; replaced when the current server fails
  std::map<CallId, std::shared_ptr<Call>> calls_;
  CallId last_call_ = 0;
  std::size_t busy_ = 0;  // calls with a transfer, not counting streams
  std::deque<std::shared_ptr<Call>> line_;
  bool closed_ = false;
};

}  // namespace weft::rpc::detail
