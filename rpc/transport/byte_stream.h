// ByteStream: a connected, non-blocking stream of bytes, which a StreamConnection sends frames over.
//
// One contract for a socket, TLS over another stream, a ring in shared memory and a simulated wire. A stream
// lives on one loop, where all its members are called, and ends with its destructor. read() and write() move
// what can be moved at once and never call back; where one would block, when_readable() or when_writable()
// asks for one call, on the loop, when it is worth trying again. Such a call may come for nothing, and comes
// too where the stream has failed, so that the next read() says so. close() drops the jobs.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/transport/bulk_range.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>

namespace weft::rpc {

// Bulk beside the stream, where the other side is a process of this host that lets its memory be read: what
// is large travels as its address, and the receiver copies it once, into its final place.
class WEFT_EXPORT BulkAccess {
 public:
  virtual ~BulkAccess() = default;
  virtual BulkRange range() const = 0;  // of what goes this way; the same on both sides

  // The receiver. Copies from the sender's memory; blocks for as long as that takes. An error where the
  // memory is not there, or where the other side has closed the stream by then: what was read may have been
  // anything.
  virtual void pull(std::uint64_t address, std::span<std::byte> into, std::error_code& error) = 0;
  virtual void acknowledge() = 0;  // the bulk of one more frame has been pulled: the sender may let go of it

  // The sender. Of how many of its frames the bulk has been pulled: a number that only grows, and that the
  // other side states: never trusted to be no more than were sent.
  virtual std::uint64_t acknowledged() const = 0;
  virtual void when_acknowledged(
      Callback job) = 0;  // once, like when_readable(): acknowledged() may have grown
};

class WEFT_EXPORT ByteStream {
 public:
  virtual ~ByteStream() = default;

  // How many bytes were moved, not 0 unless `error` says why: would_block (asio::error::would_block), for a
  // read asio::error::eof once the other side has ended its direction and everything has been read, or what
  // broke the stream. The spans are not empty, and a stream may leave those beyond the 64th.
  virtual std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) = 0;
  virtual std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) = 0;

  // One job each at a time, as described above.
  virtual void when_readable(Callback job) = 0;
  virtual void when_writable(Callback job) = 0;

  virtual void shut_down_writing(
      std::error_code& error) = 0;  // the other side reads eof after what was written
  virtual void close() = 0;  // both directions, at once; idempotent. Afterwards only the destructor is called

  virtual std::string describe() const = 0;  // "tcp 127.0.0.1:4000 -> 127.0.0.1:5000"
  // Who the other side is, as far as its credentials or the kernel prove it: "uid:1000", "cert:worker1",
  // "psk:job7"; empty where nothing does, or does not yet.
  virtual std::string identity() const { return {}; }
  // What an error of this stream means, for people: more than its message where the stream knows more ("the
  // peer's certificate is for 'b', not 'a'").
  virtual std::string explain(const std::error_code& error) const { return error.message(); }
  virtual BulkAccess* bulk() { return nullptr; }
};

}  // namespace weft::rpc
