// StreamConnection<Protocol>: frames over a connected stream socket of Asio (TCP, Unix).
//
// Queued frames leave in one gathering write; reads fill a FrameReader, large attachments straight into their
// storage. The 64 KiB cap of asio::async_read and async_write does not apply: each step is one *_some call
// over all there is. finish() closes its direction once all has been written and reads on until the other
// side has closed too: closing a socket with unread bytes would reset the connection, and what is still in
// flight would be lost.
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/transport/frame_reader.h>

#include <asio/basic_stream_socket.hpp>
#include <asio/buffer.hpp>
#include <asio/steady_timer.hpp>

#include <array>
#include <deque>

namespace weft::rpc {

template <class Protocol>
class StreamConnection final : public Connection,
                               public std::enable_shared_from_this<StreamConnection<Protocol>> {
 public:
  using Socket = asio::basic_stream_socket<Protocol>;

  StreamConnection(Socket socket, std::shared_ptr<Loop> loop, const Limits& limits, std::string description)
      : socket_(std::move(socket)),
        loop_(std::move(loop)),
        reader_(limits),
        description_(std::move(description)),
        patience_(socket_.get_executor()) {}

  const std::shared_ptr<Loop>& loop() const override { return loop_; }
  std::string describe() const override { return description_; }

  void start(std::shared_ptr<ConnectionObserver> observer) override {
    observer_ = std::move(observer);
    if (closed_) return report();
    read();
  }

  void send(OutboundFrame frame) override {
    if (closed_ || finishing_) return;
    queue_.push_back(std::move(frame));
    if (flush_due_ || writing_) return;
    // Frames that are sent in the same turn of the loop leave together.
    flush_due_ = true;
    loop_->post([self = this->shared_from_this()] {
      self->flush_due_ = false;
      self->write();
    });
  }

  void finish(const Error& reason) override {
    if (closed_ || finishing_) return;
    finishing_ = reason;
    be_patient();
    if (queue_.empty()) end_sending();
  }

  void close(const Error& reason) override {
    if (closed_) return;
    closed_ = reason;
    patience_.cancel();
    asio::error_code ignored;
    socket_.shutdown(Socket::shutdown_both, ignored);
    socket_.close(ignored);
    // Not from within the caller's frame: it may be about to use what on_closed tears down.
    if (observer_ != nullptr) loop_->post([self = this->shared_from_this()] { self->report(); });
    const auto dropped = std::exchange(queue_, {});  // last: whoever borrowed bytes to them learns of it
  }

 private:
  static constexpr std::size_t most_buffers = 64;  // per system call, under Asio

  static constexpr auto patience =
      std::chrono::seconds{2};  // with a finished connection that makes no progress

  template <class B>
  struct Sequence {  // a view of buffers as Asio's buffer sequence
    using value_type = B;
    using const_iterator = const B*;
    const B* first;
    const B* last;
    const_iterator begin() const { return first; }
    const_iterator end() const { return last; }
  };

  void report() {
    if (auto observer = std::exchange(observer_, nullptr)) observer->on_closed(*closed_);
  }

  void read() {
    inbound_.clear();
    for (const auto target : reader_.targets()) inbound_.emplace_back(target.data(), target.size());
    socket_.async_read_some(
        Sequence<asio::mutable_buffer>{inbound_.data(), inbound_.data() + inbound_.size()},
        [self = this->shared_from_this()](const asio::error_code& error, std::size_t n) {
          self->on_read(error, n);
        });
  }

  void on_read(const asio::error_code& error, std::size_t bytes) {
    if (closed_) return;
    if (error) {
      return close(finishing_ ? *finishing_
                              : Error(ErrorKind::peer_lost, error == asio::error::eof
                                                                ? "the other side closed the connection"
                                                                : "connection lost: " + error.message()));
    }
    if (finishing_) return read();  // into the same memory again: nobody wants it any more
    try {
      reader_.advance(bytes);
      while (!closed_ && !finishing_) {
        auto frame = reader_.next();
        if (!frame) break;
        auto observer = observer_;
        observer->on_frame(std::move(*frame));
      }
    } catch (const Error& bad) {
      return close(bad);
    } catch (const std::bad_alloc&) {
      return close(Error(ErrorKind::resource_exhausted, "no memory for an arriving frame"));
    } catch (const std::exception& fault) {
      return close(Error(ErrorKind::internal, fault.what()));
    }
    if (!closed_) read();
  }

  void write() {
    if (closed_ || writing_ || queue_.empty()) return;
    static constexpr std::array<std::byte, Buffer::alignment> zeros{};
    outbound_.clear();
    std::size_t skip = written_;  // of the first frame, from an earlier partial write
    const auto add = [&](const std::byte* data, std::size_t size) {
      const std::size_t from = std::min(skip, size);
      skip -= from;
      if (size != from) outbound_.emplace_back(data + from, size - from);
    };
    for (const OutboundFrame& frame : queue_) {
      if (outbound_.size() >= most_buffers) break;
      add(frame.head.data(), frame.head.size());
      for (const Buffer& attachment : frame.attachments) {
        add(attachment.data(), attachment.size());
        add(zeros.data(), padded(attachment.size()) - attachment.size());
      }
    }
    writing_ = true;
    const std::size_t count = std::min(outbound_.size(), most_buffers);
    socket_.async_write_some(Sequence<asio::const_buffer>{outbound_.data(), outbound_.data() + count},
                             [self = this->shared_from_this()](const asio::error_code& error, std::size_t n) {
                               self->on_written(error, n);
                             });
  }

  void on_written(const asio::error_code& error, std::size_t bytes) {
    writing_ = false;
    if (closed_) return;
    if (error)
      return close(finishing_ ? *finishing_
                              : Error(ErrorKind::peer_lost, "connection lost: " + error.message()));
    written_ += bytes;
    while (!queue_.empty()) {
      OutboundFrame& front = queue_.front();
      std::size_t size = front.head.size();
      for (const Buffer& attachment : front.attachments) size += padded(attachment.size());
      if (written_ < size) break;
      written_ -= size;
      OutboundFrame done = std::move(front);
      queue_.pop_front();
      if (done.sent) done.sent();
      if (closed_) return;
    }
    if (finishing_) be_patient();
    if (!queue_.empty()) return write();
    if (finishing_) end_sending();
  }

  void end_sending() {
    if (observer_ == nullptr) return close(*finishing_);  // never started: nobody reads here
    asio::error_code error;
    socket_.shutdown(Socket::shutdown_send, error);
    if (error) close(*finishing_);
  }

  void be_patient() {
    patience_.expires_after(patience);
    patience_.async_wait([self = this->shared_from_this()](const asio::error_code& error) {
      if (!error) self->close(*self->finishing_);
    });
  }

  Socket socket_;
  std::shared_ptr<Loop> loop_;
  FrameReader reader_;
  std::string description_;
  std::shared_ptr<ConnectionObserver> observer_;
  std::optional<Error> finishing_;
  std::optional<Error> closed_;
  asio::steady_timer patience_;

  std::deque<OutboundFrame> queue_;
  std::size_t written_ = 0;  // bytes of the queue's first frame that have left
  bool writing_ = false;
  bool flush_due_ = false;
  std::vector<asio::const_buffer> outbound_;
  std::vector<asio::mutable_buffer> inbound_;
};

}  // namespace weft::rpc
