// Lanes: additional streams of bytes next to a connection, which carry its large attachments. Each attachment
// is divided into one slice for each lane.
//
// One TCP connection is limited to one flow of the network and to one core; each lane is another flow, on
// another loop. The other side must read the buffers in the order and with the sizes in which this side
// writes them. The frames on the connection announce the sizes, so lanes have no framing. Members are called
// on the loop of the connection (`home`), except where another thread is permitted.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/transport/byte_stream.h>

#include <atomic>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT Lanes final {
 public:
  // Attachments of this size or more are sent on the lanes. The number is part of the wire protocol: both
  // sides must use the same number.
  static constexpr std::size_t least_bytes = std::size_t{1} << 20;

  // Closes a stream on its loop.
  struct CloseOnLoop {
    std::shared_ptr<Loop> loop;
    void operator()(ByteStream* stream) const;  // as std::default_delete
  };
  using Stream = std::unique_ptr<ByteStream, CloseOnLoop>;
  // Called with the reason for the loss of a lane (start()).
  using Lost = UniqueFunction<void(const std::string& why, bool idle)>;

  // streams: in the order on which both sides have agreed.
  Lanes(std::shared_ptr<Loop> home, std::vector<Stream> streams);
  ~Lanes();  // closes the lanes; any thread
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Call once, before the first write() or read(). `lost` runs on `home` for each lane that is lost, never
  // after close(). idle: the lane had nothing to read or write, so transfers on the other lanes may still
  // succeed.
  void start(Lost lost);

  // The buffers are kept until they have been transferred, or until each lane has processed close(). `done`
  // runs on `home`, never after close().
  void write(std::vector<Buffer> buffers, Callback done);
  void read(std::vector<Buffer> buffers, Callback done);

  // Discards all bytes that arrive from now on, so that the other side can continue to write.
  void drop_reads();
  void close();  // idempotent

  // The bytes on all lanes so far; any thread.
  std::uint64_t received_bytes() const;
  std::uint64_t written_bytes() const;

 private:
  class Lane;
  struct Shared;
  void transfer(std::vector<Buffer> buffers, Callback done, bool reading);

  const std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<Lane>> lanes_;
};

}  // namespace weft::rpc
