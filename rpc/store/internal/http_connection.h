// HttpConnection: one connection to an HTTP server, for one exchange at a time. Between exchanges it detects
// when the server closes it.
//
// Belongs to the loop of its io_context; members are called there. After close() no callback runs.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/store/internal/http_reader.h>

#include <asio/ip/tcp.hpp>

#include <array>
#include <memory>
#include <optional>

namespace weft::rpc::detail {

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Connected = UniqueFunction<void(const asio::error_code&)>;
  using Exchanged = UniqueFunction<void(Result<unsigned>&&)>;  // with the response's status
  using Part = UniqueFunction<void(unsigned status, std::string_view)>;

  HttpConnection(asio::io_context& context, std::size_t server);

  void connect(const std::string& host, const std::string& port, Connected done);
  // If it fails, the request may have been executed.
  void exchange(std::string request, Part part, Exchanged done);
  void close();
  bool usable() const { return open_ && !exchanged_; }
  bool exchanging() const { return static_cast<bool>(exchanged_); }
  std::size_t server() const { return server_; }  // its index in the client

 private:
  void read();
  void take(std::string_view bytes);
  void end(const Error& reason);
  void finish(Result<unsigned>&& result);

  asio::ip::tcp::resolver resolver_;
  asio::ip::tcp::socket socket_;
  const std::size_t server_;
  bool open_ = false;
  bool closed_ = false;
  std::string request_;
  std::optional<HttpReader> reader_;
  Part part_;
  Exchanged exchanged_;
  std::array<char, 16 * 1024> buffer_;
};

}  // namespace weft::rpc::detail
