// PlainConnection: frames over any ByteStream, in the plainest way.
//
// It stands in for rpc/transport/stream_connection.h where that still needs a socket.
#pragma once

#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/transport/frame_reader.h>

#include <asio/error.hpp>

#include <array>
#include <deque>
#include <optional>

namespace weft::test {

class PlainConnection final : public rpc::Connection, public std::enable_shared_from_this<PlainConnection> {
 public:
  PlainConnection(std::unique_ptr<rpc::ByteStream> stream, std::shared_ptr<rpc::Loop> loop,
                  const rpc::Limits& limits)
      : stream_(std::move(stream)), loop_(std::move(loop)), reader_(limits) {}

  static std::shared_ptr<rpc::Connection> make(std::unique_ptr<rpc::ByteStream> stream,
                                               std::shared_ptr<rpc::Loop> loop, const rpc::Limits& limits) {
    return std::make_shared<PlainConnection>(std::move(stream), std::move(loop), limits);
  }

  const std::shared_ptr<rpc::Loop>& loop() const override { return loop_; }
  std::string describe() const override { return stream_->describe(); }

  void start(std::shared_ptr<rpc::ConnectionObserver> observer) override {
    observer_ = std::move(observer);
    if (closed_) return report();
    loop_->post([self = shared_from_this()] { self->read(); });
  }
  void send(rpc::OutboundFrame frame) override {
    if (closed_ || finishing_) return;
    queue_.push_back(std::move(frame));
    if (queue_.size() == 1) loop_->post([self = shared_from_this()] { self->write(); });
  }
  void finish(const rpc::Error& reason) override {
    if (closed_ || finishing_) return;
    finishing_ = reason;
    timer_ = loop_->schedule(loop_->now() + std::chrono::seconds{2}, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->timer_ = 0;
        self->close(*self->finishing_);
      }
    });
    if (queue_.empty()) end_sending();
  }
  void close(const rpc::Error& reason) override {
    if (closed_) return;
    closed_ = reason;
    if (timer_ != 0) loop_->cancel(std::exchange(timer_, 0));
    const auto self = shared_from_this();  // the stream's jobs may hold the last reference
    stream_->close();
    if (observer_ != nullptr) loop_->post([self] { self->report(); });
    const auto dropped = std::exchange(queue_, {});
  }

 private:
  void report() {
    if (auto observer = std::exchange(observer_, nullptr)) observer->on_closed(*closed_);
  }
  void lost(const std::error_code& error) {
    close(finishing_ ? *finishing_
                     : rpc::Error(rpc::ErrorKind::peer_lost, error == asio::error::eof
                                                                 ? "the other side closed the connection"
                                                                 : "connection lost: " + error.message()));
  }
  void end_sending() {
    if (observer_ == nullptr) return close(*finishing_);
    std::error_code error;
    stream_->shut_down_writing(error);
    if (error) close(*finishing_);
  }

  void read() {
    while (!closed_) {
      std::error_code error;
      const std::size_t n = stream_->read(reader_.targets(), error);
      if (error == asio::error::would_block)
        return stream_->when_readable([self = shared_from_this()] { self->read(); });
      if (error) return lost(error);
      if (finishing_) continue;
      try {
        reader_.advance(n);
        while (!closed_ && !finishing_) {
          auto frame = reader_.next();
          if (!frame) break;
          auto observer = observer_;
          observer->on_frame(std::move(*frame));
        }
      } catch (const rpc::Error& bad) {
        return close(bad);
      }
    }
  }

  void write() {
    static constexpr std::array<std::byte, rpc::Buffer::alignment> zeros{};
    while (!closed_ && !queue_.empty()) {
      std::vector<std::span<const std::byte>> spans;
      std::size_t skip = written_, size = 0;
      const auto add = [&](std::span<const std::byte> bytes) {
        size += bytes.size();
        const std::size_t from = std::min(skip, bytes.size());
        skip -= from;
        if (from != bytes.size()) spans.push_back(bytes.subspan(from));
      };
      const rpc::OutboundFrame& front = queue_.front();
      add(front.head.bytes());
      for (const rpc::Buffer& attachment : front.attachments) {
        add(attachment.bytes());
        add(std::span(zeros).first(
            static_cast<std::size_t>(rpc::padded(attachment.size()) - attachment.size())));
      }
      std::error_code error;
      written_ += stream_->write(spans, error);
      if (error == asio::error::would_block)
        return stream_->when_writable([self = shared_from_this()] { self->write(); });
      if (error) return lost(error);
      if (written_ != size) continue;
      written_ = 0;
      rpc::OutboundFrame done = std::move(queue_.front());
      queue_.pop_front();
      if (done.sent) done.sent();
    }
    if (!closed_ && finishing_) end_sending();
  }

  std::unique_ptr<rpc::ByteStream> stream_;
  std::shared_ptr<rpc::Loop> loop_;
  rpc::FrameReader reader_;
  std::shared_ptr<rpc::ConnectionObserver> observer_;
  std::optional<rpc::Error> finishing_, closed_;
  rpc::Loop::TimerId timer_ = 0;
  std::deque<rpc::OutboundFrame> queue_;
  std::size_t written_ = 0;  // of the first
};

}  // namespace weft::test
