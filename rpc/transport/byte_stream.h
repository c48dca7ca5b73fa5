// ByteStream: a connected, non-blocking stream of bytes, over which a StreamConnection sends frames.
//
// The interface of a socket, TLS over another stream, a ring in shared memory and a simulated wire. A stream
// belongs to one loop, on which all members are called. Its destructor closes it. read() and write() move the
// bytes that can be moved at once, and never call back. If one of them returns would_block, when_readable()
// or when_writable() requests one call on the loop when another try is useful. Such a call may be spurious.
// It also occurs if the stream has failed, so that the next read() returns the error. close() drops the
// requested calls.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/transport/address.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <system_error>

namespace weft::rpc {

// The sizes of attachments that are not sent in the stream (BulkAccess). The default is the empty range.
struct BulkRange {
  static constexpr std::size_t no_end = std::numeric_limits<std::size_t>::max();

  std::size_t begin = no_end, end = no_end;  // bytes; the end is not part of the range
  // Whether an attachment of this size is not sent in the stream.
  bool contains(std::size_t size) const { return size >= begin && size < end; }
  friend bool operator==(const BulkRange&, const BulkRange&) = default;
};

// Transfers large attachments outside the stream, if the other side is a process on this host that permits
// reading its memory. Only the address is sent in the stream, and the receiver copies the data once, to its
// final place.
class WEFT_EXPORT BulkAccess {
 public:
  virtual ~BulkAccess() = default;
  virtual BulkRange range() const = 0;  // the sizes that are transferred this way; equal on both sides

  // Receiver: copies from the sender's memory and blocks for the duration of the copy. Fails if the memory
  // does not exist, or if the sender has closed the stream by the end of the copy. Then the copied bytes are
  // unspecified.
  virtual void pull(std::uint64_t address, std::span<std::byte> into, std::error_code& error) = 0;

  // Receiver: reports that it has copied the bulk of one more frame. The sender may then release this bulk.
  virtual void acknowledge() = 0;

  // Sender: the number of its frames whose bulk the receiver has copied. The number only grows. The receiver
  // writes it, so the sender must check that the number does not exceed the number of sent frames.
  virtual std::uint64_t acknowledged() const = 0;
  // Requests one call, like when_readable(), when acknowledged() may have grown.
  virtual void when_acknowledged(Callback job) = 0;
};

class WEFT_EXPORT ByteStream {
 public:
  virtual ~ByteStream() = default;

  // Returns the number of bytes that were moved. If the number is 0, `error` is set. would_block
  // (asio::error::would_block): try again later. asio::error::eof, only for a read: the other side has closed
  // its direction, and everything has been read. Other errors: the stream has failed. The spans must not be
  // empty. A stream may ignore the spans after the 64th.
  virtual std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) = 0;
  virtual std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) = 0;

  // Each function has at most one pending job.
  virtual void when_readable(Callback job) = 0;
  virtual void when_writable(Callback job) = 0;

  // Ends this side's direction: after the bytes that were written, the other side reads eof.
  virtual void shut_down_writing(std::error_code& error) = 0;

  virtual void close() = 0;  // both directions, at once; idempotent. Only the destructor may follow

  virtual std::string describe() const = 0;  // "tcp 127.0.0.1:4000 -> 127.0.0.1:5000"
  // The identity of the other side that its credentials or the kernel prove: "uid:1000", "cert:worker1",
  // "psk:job7". Empty if no identity is proved, or not yet. For TCP, each call asks the kernel
  // (internal/socket_user.h): call it once, when the first bytes of the other side have arrived.
  virtual std::string identity() const { return {}; }
  // Whether the other side has closed its direction, or the stream has failed. Bytes may be left to read.
  virtual bool has_ended() const { return false; }
  // Whether the stream is one flow of a network, so that lanes may help: a stream of TCP, also with TLS.
  virtual bool is_network_flow() const { return false; }
  // Moves such a stream to another loop, and drops the requested calls.
  virtual void move_to(std::shared_ptr<Loop> loop) { (void)loop; }
  // The hosts of both ends. nullopt: the stream has none, because it is simulated.
  virtual std::optional<HostPair> hosts() const { return std::nullopt; }
  // Describes an error of this stream for users. Adds details to the error's message if the stream has them
  // ("the peer's certificate is for 'b', not 'a'").
  virtual std::string explain(const std::error_code& error) const { return error.message(); }
  // null: all attachments are sent in the stream. Valid as long as the stream.
  virtual BulkAccess* bulk() { return nullptr; }
};

}  // namespace weft::rpc
