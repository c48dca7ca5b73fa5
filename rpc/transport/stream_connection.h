// StreamConnection: sends and receives frames over any ByteStream.
//
// Frames that are sent in the same turn of the loop are written together, with one gathering write. Reads
// fill a FrameReader; large attachments are read directly into their final memory. If the stream has
// BulkAccess, only the addresses of large attachments are sent, and a frame's `sent` runs when the other side
// has copied the attachments. send_ahead() puts a frame into the next write, before all queued frames except
// one that was written in part. It does not overtake bytes that the stream has accepted (in a socket's buffer
// or a ring).
//
// finish() writes all frames, closes this side's direction, and continues to read the stream until the other
// side has closed, too. Closing a socket with unread bytes would reset the connection, and bytes in flight
// would be lost.
#pragma once

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/transport/frame_reader.h>

#include <optional>

namespace weft::rpc {

class WEFT_EXPORT StreamConnection final : public Connection,
                                           public std::enable_shared_from_this<StreamConnection> {
 public:
  StreamConnection(std::unique_ptr<ByteStream> stream, std::shared_ptr<Loop> loop,
                   const ConnectionOptions& options);

  const std::shared_ptr<Loop>& loop() const override { return loop_; }
  void start(std::shared_ptr<ConnectionObserver> observer) override;
  void send(OutboundFrame&& frame) override;
  void send_ahead(OutboundFrame&& frame) override;
  std::uint64_t received_bytes() const override { return received_bytes_; }
  void finish(const Error& reason) override;
  void close(const Error& reason) override;
  std::string describe() const override { return description_; }
  std::string identity() const override { return stream_ != nullptr ? stream_->identity() : std::string(); }
  bool has_ended() const override { return stream_ == nullptr || stream_->has_ended(); }
  std::optional<HostPair> hosts() const override {
    return stream_ != nullptr ? stream_->hosts() : std::nullopt;
  }
  bool is_network_flow() const override { return stream_ != nullptr && stream_->is_network_flow(); }
  std::unique_ptr<ByteStream> take_stream() override;
  StripedStream* add_lanes(std::vector<std::unique_ptr<ByteStream>> lanes) override;

 private:
  enum class Reading : std::uint8_t { open, awaiting_room, overdue };
  enum class Writing : std::uint8_t { idle, due, blocked };
  struct Queued {
    OutboundFrame frame;
    std::size_t size = 0;                  // bytes on the stream
    std::vector<std::uint64_t> addresses;  // the addresses of its bulk attachments
  };

  void enqueue(Fifo<Queued>& queue, OutboundFrame&& frame);
  void await_readable();
  void on_readable();
  bool take_frames();  // delivers frames from the bytes that were read; false: closed
  bool read_held() const { return reading_ != Reading::open; }
  bool admit(const Prefix& announced);  // false: the frame waits for room
  void stop_waiting_for_room();
  void resume_reading();  // continues when there is room
  bool has_queued() const { return !queue_.empty() || !ahead_.empty(); }
  void write_soon();
  void write();
  void write_held_back();  // writes the frames that were sent during a delivery
  void place_ahead();
  void gather();
  void written(std::size_t bytes);
  void on_acknowledged();
  void lost(const std::error_code& error);
  void end_once_all_has_left();
  void end_sending();
  void restart_close_timer();
  void report();

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

}  // namespace weft::rpc
