// SocketStream<Protocol>: a connected stream socket of Asio (TCP, Unix) as a ByteStream.
//
// Asio only waits; the bytes move by one readv or sendmsg each.
#pragma once

#include <weft/rpc/transport/byte_stream.h>

#include <asio/basic_stream_socket.hpp>
#include <asio/error.hpp>

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace weft::rpc {

template <class Protocol>
class SocketStream final : public ByteStream {
 public:
  using Socket = asio::basic_stream_socket<Protocol>;

  SocketStream(Socket socket, std::shared_ptr<Loop> loop, std::string description, std::string identity = {})
      : socket_(std::move(socket)),
        loop_(std::move(loop)),
        description_(std::move(description)),
        identity_(std::move(identity)) {
    asio::error_code ignored;
    socket_.native_non_blocking(true, ignored);
  }

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    iovec vectors[most_vectors];
    const int count = fill(into, vectors);
    return moved(::readv(socket_.native_handle(), vectors, count), error);
  }

  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    iovec vectors[most_vectors];
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<std::size_t>(fill(from, vectors));
    const ssize_t bytes = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
    return bytes == 0 ? (error = asio::error::would_block, 0) : moved(bytes, error);
  }

  void when_readable(Job job) override { wait(Socket::wait_read, std::move(job)); }
  void when_writable(Job job) override { wait(Socket::wait_write, std::move(job)); }

  void shut_down_writing(std::error_code& error) override { socket_.shutdown(Socket::shutdown_send, error); }
  void close() override {
    asio::error_code ignored;
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  std::string describe() const override { return description_; }
  std::string identity() const override { return identity_; }

 private:
  static constexpr std::size_t most_vectors = 64;

  template <class Byte>
  static int fill(std::span<const std::span<Byte>> spans, iovec* vectors) {
    const std::size_t count = std::min(spans.size(), most_vectors);
    for (std::size_t i = 0; i < count; ++i)
      vectors[i] = {const_cast<std::byte*>(spans[i].data()), spans[i].size()};
    return static_cast<int>(count);
  }

  static std::size_t moved(ssize_t bytes, std::error_code& error) {
    if (bytes > 0) return static_cast<std::size_t>(bytes);
    if (bytes == 0) {
      error = asio::error::eof;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      error = asio::error::would_block;
    } else {
      error.assign(errno, std::system_category());
    }
    return 0;
  }

  void wait(typename Socket::wait_type what, Job job) {
    socket_.async_wait(what, [loop = loop_, job = std::move(job)](const asio::error_code& error) mutable {
      if (error != asio::error::operation_aborted) loop->run_turn(std::move(job));
    });
  }

  Socket socket_;
  const std::shared_ptr<Loop> loop_;
  const std::string description_;
  const std::string identity_;
};

}  // namespace weft::rpc
