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
#include <weft/rpc/transport/shm/hello.h>
#include <weft/rpc/transport/shm/segment.h>

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

class WEFT_EXPORT ShmHandshake final : public std::enable_shared_from_this<ShmHandshake> {
 public:
  using Socket = asio::local::stream_protocol::socket;  // over which the two sides agree
  // Receives the stream, or the error.
  using Done = UniqueFunction<void(Result<std::unique_ptr<ByteStream>>)>;

  // A handshake over this socket, which connect() or begin() starts. description: of the stream. kept:
  // released when the stream is closed, or when the handshake fails.
  ShmHandshake(Socket socket, std::shared_ptr<Loop> loop, const ShmOptions& options, std::string description,
               Done done, std::shared_ptr<void> kept = nullptr);

  const std::shared_ptr<Loop>& loop() const { return loop_; }  // of the socket
  // Connects the socket, and then begins.
  void connect(const asio::local::stream_protocol::endpoint& where);
  void begin();  // over a connected socket; call on the loop
  void abort();  // call on the loop; the handshake fails with shut_down, unless it has ended

 private:
  using Step = void (ShmHandshake::*)();

  void greet();
  void on_hello();
  void on_proof();
  void on_verdict();
  void expect(std::size_t bytes, Step next);
  void await_bytes();
  void receive();
  void take_descriptors(msghdr& message);
  void attempt(Step step);
  void fail(std::exception_ptr error);
  void succeed();

  Socket socket_;
  const std::shared_ptr<Loop> loop_;
  const ShmOptions options_;
  std::string description_;
  Done done_;  // null: the handshake has ended
  std::shared_ptr<void> kept_;
  Loop::TimerId timer_ = 0;
  std::string identity_;
  std::optional<ShmSegment> outbound_, inbound_;
  std::optional<PeerMemory> memory_;
  ShmHello own_hello_, peer_hello_;  // the other side reads the nonce of `peer_hello_` in this memory
  bool readable_ = false;            // whether this side can read the other side's memory

  std::array<std::byte, ShmHello::size> bytes_{};
  std::size_t received_ = 0, expected_ = 0;
  Step next_ = nullptr;
  Descriptor descriptor_;  // received with the hello
};

}  // namespace weft::rpc
