// HttpReader: takes an HTTP/1.1 response apart as its bytes come (RFC 9112): Content-Length, chunked with
// trailers, or until the connection ends.
//
// Pure: no socket, no clock. Every length is checked before it is believed: the head (and trailers) are
// limited; a body is handed on as it comes, so limiting that is for who keeps it. After anything that throws
// (protocol_error) the connection is of no more use. Thread-safety: none.
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

  // Takes bytes, up to the end of the response, and says how many those were.
  std::size_t push(std::string_view bytes);
  void connection_ended();  // throws where the response was still to go on

  bool complete() const { return stage_ == Stage::complete; }
  unsigned status() const { return status_; }
  bool keeps_connection() const { return keep_alive_; }  // once complete

 private:
  enum class Stage { head, sized, chunk_size, chunk, chunk_end, trailer, to_the_end, complete };

  bool take_line(std::string_view& bytes);  // into line_; false where it goes on
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
