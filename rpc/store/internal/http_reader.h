// HttpReader: parses an HTTP/1.1 response from its bytes (RFC 9112): with Content-Length, chunked with
// trailers, or until the end of the connection.
//
// No socket and no clock. Every length is checked: the head and trailers are limited; the body is passed on
// as it arrives, so the receiver must limit it. After protocol_error was thrown, the connection must not be
// used again. Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace weft::rpc::detail {

class HttpReader {
 public:
  using Body = std::function<void(std::string_view)>;
  static constexpr std::size_t max_head = 64 * 1024;

  explicit HttpReader(Body body) : body_(std::move(body)) {}

  // Consumes bytes up to the end of the response, and returns their number.
  std::size_t push(std::string_view bytes);
  void connection_ended();  // throws if the response is incomplete

  bool complete() const { return stage_ == Stage::complete; }
  unsigned status() const { return status_; }
  bool keeps_connection() const { return keep_alive_; }  // call once complete

 private:
  enum class Stage { head, sized, chunk_size, chunk, chunk_end, trailer, to_the_end, complete };

  bool take_line(std::string_view& bytes);  // into line_; false if the line is incomplete
  void on_line();
  void on_head_line();
  void begin_body();
  void field(std::string_view name, std::string_view value);

  Body body_;
  Stage stage_ = Stage::head;
  std::string line_;
  std::size_t head_bytes_ = 0;
  unsigned status_ = 0;
  bool keep_alive_ = true;
  bool chunked_ = false;
  bool has_length_ = false;
  std::uint64_t left_ = 0;  // of the body, or of the chunk
};

}  // namespace weft::rpc::detail
