// Reading: on_readable() reads until the stream would block, and take_frames() delivers the complete frames.
// Nothing is read in the states other than `open`:
//
//   open          -> awaiting_room  there is no room for a large frame (Admission)
//   awaiting_room -> open           there may be room (resume_reading())
//   awaiting_room -> overdue        there was none in time: the frame is skipped
//   overdue       -> open           it was skipped
//   any           -> open           finish()
//
// Writing: send() only queues the frame, and one posted write() sends all frames of a turn:
//
//   idle -> due              write() is posted
//   due -> idle              it runs
//   idle, due -> blocked     the stream takes no more bytes
//   blocked -> idle          the stream is writable
//
// While frames are delivered, frames that are sent are held back and written together afterwards
// (write_held_back). A frame leaves queue_ when its part on the stream has been written. If it has bulk, it
// then waits in unacknowledged_ for the receiver to copy the bulk. Its `sent` runs after that.
//
// Closing: finish() writes the rest, closes its direction of the stream, and discards what it reads until the
// other side closes, too. restart_close_timer() restarts the timeout whenever there is progress.
#include <weft/rpc/transport/stream_connection.h>

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/transport/admission.h>
#include <weft/rpc/transport/frame_reader.h>
#include <weft/rpc/transport/internal/striped_stream.h>
#include <weft/rpc/transport/tls_stream.h>

#include <asio/error.hpp>

#include <algorithm>
#include <array>

namespace weft::rpc {
namespace {

constexpr std::size_t max_spans = 64;  // of one write; the maximum of one system call in Asio
// After this many frames that were held back, they are written before the rest of the received frames is
// delivered, so that the other side can process them in the meantime.
constexpr std::size_t max_held_back = 16;
constexpr int max_reads_a_turn = 16;               // then other connections on the loop run
constexpr auto timeout = std::chrono::seconds{2};  // of a finishing connection that makes no progress
constexpr std::array<std::byte, Buffer::alignment> zeros{};

std::size_t size_of(const std::vector<std::span<std::byte>>& spans) {
  std::size_t bytes = 0;
  for (const auto span : spans) bytes += span.size();
  return bytes;
}

class StreamConnection final : public Connection, public std::enable_shared_from_this<StreamConnection> {
 public:
  StreamConnection(std::unique_ptr<ByteStream> stream, std::shared_ptr<Loop> loop,
                   const ConnectionOptions& options)
      : stream_(std::move(stream)),
        bulk_(stream_->bulk()),
        bulk_range_(bulk_ != nullptr ? bulk_->range() : BulkRange{}),
        loop_(std::move(loop)),
        reader_(options.limits, options.memory, bulk_range_),
        admission_(options.admission),
        description_(stream_->describe()) {
    if (admission_ != nullptr) reader_.guard();
  }
  void start(std::shared_ptr<ConnectionObserver> observer) override {
    observer_ = std::move(observer);
    if (closed_) return report();
    await_readable();
  }
  void send(OutboundFrame&& frame) override { enqueue(queue_, std::move(frame)); }
  void send_ahead(OutboundFrame&& frame) override {
    enqueue(frame.attachments.empty() ? ahead_ : queue_, std::move(frame));
  }
  void finish(const Error& reason) override {
    if (closed_ || finishing_) return;
    finishing_ = reason;
    // From here on, only the pending request to the stream keeps this connection alive, until the other side
    // has received everything.
    const bool held = read_held();
    stop_waiting_for_room();
    if (held) await_readable();
    restart_close_timer();
    end_once_all_has_left();
  }
  void close(const Error& reason) override {
    if (closed_) return;
    closed_ = reason;
    loop_->cancel(std::exchange(timeout_, 0));
    stop_waiting_for_room();
    stream_->close();
    // Posted, because the caller may still use what on_closed() destroys.
    if (observer_ != nullptr) loop_->post([self = shared_from_this()] { self->report(); });
    // Last: destroying the frames notifies the owners of borrowed buffers.
    const auto unsent = std::exchange(queue_, {});
    const auto ahead = std::exchange(ahead_, {});
    const auto unread = std::exchange(unacknowledged_, {});
  }
  std::unique_ptr<ByteStream> take_stream() override {
    if (closed_ || finishing_ || has_queued() || !reader_.between_frames()) return nullptr;
    closed_ = Error(ErrorKind::aborted, "the connection has become a lane");
    observer_ = nullptr;
    return std::move(stream_);
  }
  StripedStream* add_lanes(std::vector<std::unique_ptr<ByteStream>> lanes) override {
    lanes.insert(lanes.begin(), std::move(stream_));
    auto* const striped = new StripedStream(std::move(lanes), received_bytes_, sent_bytes_);
    stream_.reset(striped);
    return striped;
  }

  const std::shared_ptr<Loop>& loop() const override { return loop_; }
  std::uint64_t received_bytes() const override { return received_bytes_; }
  std::string describe() const override { return description_; }
  std::string identity() const override { return stream_ != nullptr ? stream_->identity() : std::string(); }
  bool has_ended() const override { return stream_ == nullptr || stream_->has_ended(); }
  std::optional<HostPair> hosts() const override {
    return stream_ != nullptr ? stream_->hosts() : std::nullopt;
  }
  bool is_network_flow() const override { return stream_ != nullptr && stream_->is_network_flow(); }

 private:
  enum class Reading : std::uint8_t { open, awaiting_room, overdue };
  enum class Writing : std::uint8_t { idle, due, blocked };
  struct Queued {
    OutboundFrame frame;
    std::size_t size = 0;                  // bytes on the stream
    std::vector<std::uint64_t> addresses;  // the addresses of its bulk attachments
  };

  bool read_held() const { return reading_ != Reading::open; }
  bool has_queued() const { return !queue_.empty() || !ahead_.empty(); }
  void enqueue(Fifo<Queued>& queue, OutboundFrame&& frame) {
    if (closed_ || finishing_) return;
    Queued queued{std::move(frame)};
    queued.size = queued.frame.head.size();
    for (const Buffer& attachment : queued.frame.attachments) {
      if (bulk_range_.contains(attachment.size())) {
        queued.addresses.push_back(reinterpret_cast<std::uintptr_t>(attachment.data()));
        queued.size += sizeof(std::uint64_t);
      } else {
        queued.size += padded(attachment.size());
      }
    }
    queue.push(std::move(queued));
    write_soon();
  }

  void write_soon() {
    if (delivering_ || writing_ != Writing::idle) return;
    writing_ = Writing::due;
    loop_->post([self = shared_from_this()] {
      if (self->writing_ == Writing::due) self->writing_ = Writing::idle;
      self->write();
    });
  }

  void report() {
    if (auto observer = std::exchange(observer_, nullptr)) observer->on_closed(*closed_);
  }

  // --- Reading ---

  void await_readable() {
    stream_->when_readable([self = shared_from_this()] { self->on_readable(); });
  }

  void on_readable() {
    // A loop that polls may read before the posted write runs. If a received frame closes the connection, the
    // peer would not receive a queued Hello, which tells it the reason.
    if (writing_ == Writing::due) write();
    bool more = true;
    for (int i = 0; more && i < max_reads_a_turn; ++i) {
      if (closed_) return;
      std::error_code error;
      const auto& targets = reader_.targets();
      const std::size_t asked = size_of(targets);
      const std::size_t bytes = stream_->read(targets, error);
      if (bytes == 0) {
        if (error != asio::error::would_block) return lost(error);
        more = false;
        break;
      }
      received_bytes_ += bytes;
      more = bytes == asked;  // a short read: most probably nothing is left
      // Finishing: the received bytes are discarded. The same memory is used for the next read.
      if (finishing_) continue;
      reader_.advance(bytes);
      if (!take_frames()) return;
      if (read_held()) break;
    }
    write_held_back();
    if (closed_ || read_held()) return;
    if (more) {
      loop_->post([self = shared_from_this()] { self->on_readable(); });
    } else {
      await_readable();
    }
  }

  // Delivers frames from the bytes that were read; false: closed.
  bool take_frames() {
    const auto observer = observer_;
    delivering_ = true;
    try {
      while (!closed_ && !finishing_) {
        auto frame = reader_.next();
        if (frame) {
          observer->on_frame(std::move(*frame));
          if (queue_.size() >= max_held_back && writing_ != Writing::blocked) write();
          continue;
        }
        if (const Prefix* announced = reader_.announced()) {
          if (!admit(*announced)) break;
          continue;
        }
        if (reader_.pulls().empty()) break;
        std::error_code error;
        for (const auto& [address, into] : reader_.pulls()) {
          bulk_->pull(address, into, error);
          if (error) break;
        }
        if (error) {
          lost(error);
          break;
        }
        reader_.pulled();
        bulk_->acknowledge();
      }
    } catch (const Error& bad) {
      close(bad);
    } catch (const std::bad_alloc&) {
      close(Error(ErrorKind::resource_exhausted, "no memory for an arriving frame"));
    } catch (const std::exception& fault) {
      close(Error(ErrorKind::internal, fault.what()));
    }
    delivering_ = false;
    return !closed_;
  }

  // A reply is never held back, because requests that hold memory here may wait for it. Bulk comes from a
  // process of the same user, so its size is no reason to refuse it. false: the frame waits for room.
  bool admit(const Prefix& announced) {
    const bool is_reply = announced.kind == FrameKind::reply;
    std::shared_ptr<void> charge;
    if (!is_reply) charge = admission_->admit(announced.message_bytes());
    if (charge != nullptr || (is_reply && observer_->awaits(announced))) {
      stop_waiting_for_room();
      reader_.admit(std::move(charge));
      return true;
    }
    if (!is_reply && reading_ != Reading::overdue) {
      reading_ = Reading::awaiting_room;
      place_for_room_ = admission_->wait(announced.message_bytes(), loop_,
                                         while_alive(this, &StreamConnection::resume_reading));
      if (room_timer_ == 0)
        room_timer_ = loop_->schedule(later(loop_->now(), admission_->timeout()),
                                      while_alive(this, [](StreamConnection& self) {
                                        self.room_timer_ = 0;
                                        self.reading_ = Reading::overdue;
                                        self.resume_reading();
                                      }));
      return false;
    }
    stop_waiting_for_room();
    if (reader_.can_skip()) {
      reader_.skip();
    } else {
      reader_.admit(nullptr);
    }
    return true;
  }

  void stop_waiting_for_room() {
    reading_ = Reading::open;
    place_for_room_ = nullptr;
    loop_->cancel(std::exchange(room_timer_, 0));
  }

  // Continues when there is room.
  void resume_reading() {
    if (closed_ || finishing_ || !read_held()) return;
    if (reading_ == Reading::awaiting_room) reading_ = Reading::open;
    if (!take_frames()) return;
    write_held_back();
    if (closed_ || read_held()) return;
    on_readable();
  }

  void lost(const std::error_code& error) {
    if (finishing_) return close(*finishing_);
    if (error == asio::error::eof)
      return close(Error(ErrorKind::peer_lost, "the other side closed the connection"));
    // Another try does not help if one side refuses the other's credentials.
    if (is_refusal(error)) return close(Error(ErrorKind::permission_denied, stream_->explain(error)));
    close(Error(ErrorKind::peer_lost, "connection lost: " + stream_->explain(error)));
  }

  // --- Writing ---

  void write() {
    while (!closed_ && writing_ != Writing::blocked && has_queued()) {
      if (!ahead_.empty()) place_ahead();
      gather();
      std::error_code error;
      const std::size_t bytes = stream_->write(gathered_, error);
      if (bytes == 0 && error != asio::error::would_block) return lost(error);
      if (bytes != gathered_bytes_) {
        writing_ = Writing::blocked;
        stream_->when_writable([self = shared_from_this()] {
          self->writing_ = Writing::idle;
          self->write();
        });
      }
      written(bytes);
    }
    end_once_all_has_left();
  }

  // Writes the frames that were sent during a delivery.
  void write_held_back() {
    if (has_queued() && writing_ == Writing::idle) write();
  }

  // Called only before gather(), never between gather() and written(), because written() assumes the order of
  // the queue at the time of gather(). The front of the queue may have been written in part, and stays the
  // front.
  void place_ahead() {
    std::optional<Queued> begun;
    if (front_written_ != 0) begun = queue_.pop();
    for (std::size_t i = ahead_.size(); i-- > 0;) queue_.push_front(std::move(ahead_[i]));
    ahead_ = {};
    if (begun) queue_.push_front(std::move(*begun));
  }

  void gather() {
    gathered_.clear();
    gathered_bytes_ = 0;
    std::size_t skip = front_written_;
    const auto add = [&](const std::byte* data, std::size_t size) {
      const std::size_t from = std::min(skip, size);
      skip -= from;
      if (size == from || gathered_.size() == max_spans) return;
      gathered_.emplace_back(data + from, size - from);
      gathered_bytes_ += size - from;
    };
    for (std::size_t i = 0; i < queue_.size() && gathered_.size() < max_spans; ++i) {
      const Queued& queued = queue_[i];
      add(queued.frame.head.data(), queued.frame.head.size());
      for (const Buffer& attachment : queued.frame.attachments) {
        if (bulk_range_.contains(attachment.size())) continue;
        add(attachment.data(), attachment.size());
        add(zeros.data(), padded(attachment.size()) - attachment.size());
      }
      const auto addresses = std::as_bytes(std::span(queued.addresses));
      add(addresses.data(), addresses.size());
    }
  }

  void written(std::size_t bytes) {
    if (bytes == 0) return;
    if (finishing_) restart_close_timer();
    front_written_ += bytes;
    sent_bytes_ += bytes;
    while (!queue_.empty() && front_written_ >= queue_.front().size) {
      front_written_ -= queue_.front().size;
      if (queue_.front().addresses.empty()) {
        Callback sent = std::move(queue_.front().frame.sent);
        queue_.drop();
        if (sent) sent();
        if (closed_) return;
        continue;
      }
      unacknowledged_.push(queue_.pop());
      if (unacknowledged_.size() == 1)
        bulk_->when_acknowledged([self = shared_from_this()] { self->on_acknowledged(); });
    }
  }

  void on_acknowledged() {
    if (closed_) return;
    const std::uint64_t now = bulk_->acknowledged();
    if (now - acknowledged_ > unacknowledged_.size())
      return close(Error(ErrorKind::protocol_error,
                         "the other side acknowledged " + std::to_string(now) +
                             " frames with bulk data, and " +
                             std::to_string(acknowledged_ + unacknowledged_.size()) + " were sent"));
    while (acknowledged_ != now) {
      ++acknowledged_;
      if (finishing_) restart_close_timer();
      Queued pulled = unacknowledged_.pop();
      if (pulled.frame.sent) pulled.frame.sent();
      if (closed_) return;
    }
    if (!unacknowledged_.empty())
      bulk_->when_acknowledged([self = shared_from_this()] { self->on_acknowledged(); });
  }

  // --- The end ---

  void end_once_all_has_left() {
    if (!finishing_ || closed_ || has_queued()) return;
    if (observer_ == nullptr) return close(*finishing_);  // never started: nothing reads the stream
    std::error_code error;
    stream_->shut_down_writing(error);
    if (error) close(*finishing_);
  }

  void restart_close_timer() {
    loop_->cancel(timeout_);
    // The pending request to the stream keeps this connection alive. The timer must not: the program may
    // never run its io_context again, and then the connection would never be destroyed.
    timeout_ = loop_->schedule_closing(later(loop_->now(), timeout), [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      self->timeout_ = 0;
      self->close(*self->finishing_);
    });
  }

  std::unique_ptr<ByteStream> stream_;  // null: detached by take_stream()
  BulkAccess* const bulk_;              // null: the stream carries all attachments
  const BulkRange bulk_range_;
  const std::shared_ptr<Loop> loop_;
  FrameReader reader_;
  const std::shared_ptr<Admission> admission_;
  const std::string description_;
  std::shared_ptr<ConnectionObserver> observer_;
  std::optional<Error> finishing_;
  std::optional<Error> closed_;
  Loop::TimerId timeout_ = 0;

  Fifo<Queued> queue_;
  Fifo<Queued> ahead_;                                 // moves to the front of queue_ with the next write
  std::size_t front_written_ = 0;                      // bytes of the queue's front that have been written
  std::uint64_t received_bytes_ = 0, sent_bytes_ = 0;  // over the stream
  Reading reading_ = Reading::open;
  std::shared_ptr<void> place_for_room_;  // the place in Admission's queue
  Loop::TimerId room_timer_ = 0;
  Writing writing_ = Writing::idle;
  bool delivering_ = false;  // frames that are sent meanwhile are written afterwards
  std::vector<std::span<const std::byte>> gathered_;
  std::size_t gathered_bytes_ = 0;

  Fifo<Queued> unacknowledged_;  // frames whose bulk the other side has not copied yet
  std::uint64_t acknowledged_ = 0;
};

}  // namespace

std::shared_ptr<Connection> make_stream_connection(std::unique_ptr<ByteStream> stream,
                                                   std::shared_ptr<Loop> loop,
                                                   const ConnectionOptions& options) {
  return std::make_shared<StreamConnection>(std::move(stream), std::move(loop), options);
}

std::shared_ptr<Connection> make_secured_connection(std::unique_ptr<ByteStream> stream,
                                                    const std::shared_ptr<Loop>& loop,
                                                    const ConnectionOptions& options,
                                                    const std::optional<std::string>& dialled) {
  if (options.credentials != nullptr) {
    std::optional<ExpectedPeer> expected;
    if (dialled && !options.expected_agent.empty()) {
      expected = ExpectedPeer{.agent = options.expected_agent};
    } else if (dialled) {
      expected = ExpectedPeer{.host = *dialled, .any = dialled->empty()};
    }
    stream = make_tls_stream(std::move(stream), *options.credentials, std::move(expected), loop);
  }
  return make_stream_connection(std::move(stream), loop, options);
}

}  // namespace weft::rpc
