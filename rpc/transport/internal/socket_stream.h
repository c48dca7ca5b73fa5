// SocketStream<Protocol>: a connected stream socket of Asio (TCP, Unix) as a ByteStream.
//
// Asio only waits for the socket; one readv or sendmsg moves the bytes. If the loop spins and has few
// sockets, the stream polls the socket by reading from it instead of waiting.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/internal/socket_user.h>

#include <asio/basic_stream_socket.hpp>
#include <asio/error.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/ip/tcp.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <type_traits>

namespace weft::rpc {

template <class Protocol>
class SocketStream final : public ByteStream {
 public:
  using Socket = asio::basic_stream_socket<Protocol>;

  SocketStream(Socket socket, std::shared_ptr<Loop> loop, std::string description, HostPair hosts)
      : socket_(std::move(socket)),
        loop_(std::move(loop)),
        description_(std::move(description)),
        hosts_(std::move(hosts)) {
    asio::error_code ignored;
    socket_.native_non_blocking(true, ignored);
  }

  ~SocketStream() override {
    if (polled_ != nullptr) polled_->end();
  }

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    iovec vectors[max_vectors];
    const int count = fill(into, vectors);
    const std::size_t bytes = moved(::readv(socket_.native_handle(), vectors, count), error);
    if (polled_ != nullptr && (bytes != 0 || error != asio::error::would_block)) polled_->found_something();
    return bytes;
  }

  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    iovec vectors[max_vectors];
    msghdr message{};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<std::size_t>(fill(from, vectors));
    const ssize_t bytes = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
    return bytes == 0 ? (error = asio::error::would_block, 0) : moved(bytes, error);
  }

  void when_readable(Callback job) override {
    if (!std::exchange(poll_requested_, true) && loop_->spins()) {
      auto polled = std::make_shared<Polled>(socket_, loop_);
      if (loop_->add_poller(*polled, true)) polled_ = std::move(polled);
    }
    if (polled_ == nullptr) return wait(Socket::wait_read, std::move(job));
    polled_->await(std::move(job));
  }
  void when_writable(Callback job) override { wait(Socket::wait_write, std::move(job)); }

  void shut_down_writing(std::error_code& error) override { socket_.shutdown(Socket::shutdown_send, error); }
  void close() override {
    asio::error_code ignored;
    if (polled_ != nullptr) polled_->end();
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  bool is_network_flow() const override {
    return std::is_same_v<typename Socket::protocol_type, asio::ip::tcp>;
  }
  void move_to(std::shared_ptr<Loop> loop) override {
    if (polled_ != nullptr) std::exchange(polled_, nullptr)->end();
    poll_requested_ = false;
    asio::error_code ignored;
    const auto protocol = socket_.local_endpoint(ignored).protocol();
    socket_ = Socket(io_context_of(*loop), protocol, socket_.release());
    loop_ = std::move(loop);
  }

  std::string describe() const override { return description_; }
  std::string identity() const override { return identity_of(socket_); }
  bool has_ended() const override {
    pollfd end{socket_.native_handle(), POLLRDHUP, 0};
    return ::poll(&end, 1, 0) > 0;
  }
  std::optional<HostPair> hosts() const override { return hosts_; }

 private:
  static constexpr std::size_t max_vectors = 64;

  // Polls a socket by reading from it. It asks Asio to wait for the socket only before the loop blocks.
  class Polled final : public LoopPoller, public std::enable_shared_from_this<Polled> {
   public:
    Polled(Socket& socket, std::shared_ptr<Loop> loop)
        : socket_(&socket), loop_(std::move(loop)), work_(socket.get_executor()) {}

    void await(Callback job) {
      readable_ = std::move(job);
      if (!awake_) wait_in_asio();
    }
    void found_something() { found_ = true; }
    void end() {
      if (std::exchange(socket_, nullptr) == nullptr) return;
      loop_->remove_poller(*this);
      work_.reset();
      const Callback dropped = std::move(readable_);
    }

    bool poll() override {
      if (!readable_) return false;
      const auto self = this->shared_from_this();
      Callback job = std::move(readable_);
      found_ = false;
      job();
      return found_;
    }
    bool fall_asleep() override {
      awake_ = false;
      wait_in_asio();  // also reports bytes that have arrived already
      return true;
    }
    void wake_up() override { awake_ = true; }

   private:
    void wait_in_asio() {
      if (waiting_ || !readable_) return;
      waiting_ = true;
      socket_->async_wait(Socket::wait_read, [self = this->shared_from_this()](const asio::error_code&) {
        self->waiting_ = false;
        self->loop_->run_turn([&] { self->poll(); });
      });
    }

    Socket* socket_;  // null: the stream has ended
    const std::shared_ptr<Loop> loop_;
    asio::executor_work_guard<typename Socket::executor_type> work_;  // keeps the io_context running
    Callback readable_;
    bool awake_ = true;     // the loop polls
    bool waiting_ = false;  // Asio waits for the socket
    bool found_ = false;    // whether the last poll read something
  };

  template <class Byte>
  static int fill(std::span<const std::span<Byte>> spans, iovec* vectors) {
    const std::size_t count = std::min(spans.size(), max_vectors);
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

  void wait(typename Socket::wait_type what, Callback job) {
    socket_.async_wait(what, [loop = loop_, job = std::move(job)](const asio::error_code& error) mutable {
      if (error != asio::error::operation_aborted) loop->run_turn(std::move(job));
    });
  }

  mutable Socket socket_;  // its descriptor is not available of a constant
  std::shared_ptr<Loop> loop_;
  const std::string description_;
  const HostPair hosts_;
  std::shared_ptr<Polled> polled_;  // null: the loop does not poll the socket
  bool poll_requested_ = false;
};

}  // namespace weft::rpc
