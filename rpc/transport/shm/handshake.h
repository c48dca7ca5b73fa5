// ShmHandshake: turns a connected Unix socket into a stream through shared memory. The other side also runs a
// ShmHandshake.
//
// It verifies that the other side runs as the same user, exchanges the segments (hello.h), and tests whether
// each side may read the other's memory. It belongs to one loop. It ends exactly once, with a call of `done`
// on the loop, after the function that has started it has returned. It fails with permission_denied (another
// user), with protocol_error (malformed bytes, a missing or surplus descriptor, a segment that is not
// sealed), or with unavailable (the peer is lost or silent).
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/transport/byte_stream.h>

#include <asio/local/stream_protocol.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace weft::rpc {

// The options of a process for its connections through shared memory.
struct ShmOptions {
  // The size of this side's ring; rounded up to a power of two, at least 64 KiB.
  std::size_t ring_bytes = 1U << 20;
  std::size_t max_ring_bytes = 64U << 20;  // the maximum size of the other side's ring
  bool bulk = true;  // each side reads the other's memory, if the system permits it to both
  // The sizes of attachments that use bulk, in bytes: the greater begin and the lesser end of the two sides
  // apply. Data larger than a core's cache is faster through the rings, where the copies of both sides
  // overlap.
  std::size_t bulk_begin = 64U << 10;
  std::size_t bulk_end = 4U << 20;

  std::chrono::nanoseconds timeout = std::chrono::seconds{5};  // of the exchange of hellos
  // The maximum number of connections of one transport at a time, in both directions, including connections
  // in their handshake. Beyond this maximum, connect() fails with resource_exhausted, and an incoming
  // connection is closed at once, before anything is allocated for it.
  std::size_t max_connections = static_cast<std::size_t>(-1);
};

class WEFT_EXPORT ShmHandshake {
 public:
  using Socket = asio::local::stream_protocol::socket;  // over which the two sides agree
  // Receives the stream, or the error.
  using Done = UniqueFunction<void(Result<std::unique_ptr<ByteStream>>)>;

  // A handshake over this socket, which connect() or begin() starts. description: of the stream. kept:
  // released when the stream is closed, or when the handshake fails.
  static std::shared_ptr<ShmHandshake> make(Socket socket, std::shared_ptr<Loop> loop,
                                            const ShmOptions& options, std::string description, Done done,
                                            std::shared_ptr<void> kept = nullptr);
  virtual ~ShmHandshake() = default;

  virtual const std::shared_ptr<Loop>& loop() const = 0;  // that of make()
  // Connects the socket, and then begins.
  virtual void connect(const asio::local::stream_protocol::endpoint& where) = 0;
  virtual void begin() = 0;  // over a connected socket; call on the loop
  virtual void abort() = 0;  // call on the loop; the handshake fails with shut_down, unless it has ended

 protected:
  ShmHandshake() = default;
};

}  // namespace weft::rpc
