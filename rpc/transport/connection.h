// Connection: carries whole frames in both directions, in order but for those of send_ahead(), until it
// closes. The contract of every transport.
//
// A connection lives on one loop: all its members are called there and its observer is called there. Frames
// that it delivers have passed check_header; an Error that on_frame throws closes it. close() drops what is
// queued. finish() delivers nothing more, sends what is queued as long as the other side takes it, and
// closes. After either, or when the other side ends, on_closed comes exactly once, with the reason, never
// from within a call of these members but start(), and nothing after it.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/wire/frame.h>

#include <chrono>
#include <memory>
#include <string>

namespace weft::rpc {

class Admission;
class ByteStream;
class Credentials;
class Lanes;

// What an agent's connections have in common.
struct ConnectionOptions {
  ConnectionOptions() = default;
  ConnectionOptions(const Limits& accepted, std::shared_ptr<MemoryPool> pool = nullptr)  // NOLINT: as limits
      : limits(accepted), memory(std::move(pool)) {}

  Limits limits;
  std::shared_ptr<MemoryPool> memory;  // of arriving attachments; null: fresh memory for each
  // Connections that leave the process are TLS with them. A peer's certificate must be for `expected_agent`,
  // or where that is empty for the host that was dialled; of a path on this host for any name that is
  // trusted.
  std::shared_ptr<const Credentials> credentials;
  std::string expected_agent;
  std::chrono::nanoseconds connect_timeout{0};  // of one connect(); 0: the system's own limit
  // What admits large frames; with it the first frame must be a Hello of limited size. null: the peer is
  // trusted with the limits of one frame.
  std::shared_ptr<Admission> admission;
};

class WEFT_EXPORT ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  virtual void on_frame(InboundFrame&& frame) = 0;
  // Whether anybody waits for the large reply whose prefix this is; else it is skipped.
  virtual bool awaits(const Prefix& reply) { return (void)reply, true; }
  // A large message was skipped: a request, as there is no room for it, or a reply that nobody waits for.
  virtual void on_skipped(const Prefix& message) { (void)message; }
  virtual void on_closed(const Error& reason) = 0;
};

class WEFT_EXPORT Connection {
 public:
  virtual ~Connection() = default;

  virtual const std::shared_ptr<Loop>& loop() const = 0;
  virtual void start(std::shared_ptr<ConnectionObserver> observer) = 0;  // once; delivery begins
  virtual void send(OutboundFrame&& frame) = 0;
  virtual std::uint64_t unsent_bytes() const = 0;    // of frames that were sent and have not left yet
  virtual std::uint64_t received_bytes() const = 0;  // so far, those of unfinished frames too
  virtual void finish(const Error& reason) = 0;
  virtual void close(const Error& reason) = 0;
  virtual std::string describe() const = 0;  // "tcp 127.0.0.1:4000 -> 127.0.0.1:5000"
  // Who the other side is, as far as its credentials or the kernel prove it (ByteStream::identity).
  virtual std::string identity() const { return {}; }

  // Lanes beside it (rpc/transport/lanes.h), where it can have any. From set_lanes() on the peer may use
  // them, from use_lanes() on what is sent here does. They end with the connection; from use_lanes() on, or
  // once the peer uses them, it ends with any of them.
  virtual bool takes_lanes() const { return false; }
  virtual void set_lanes(std::unique_ptr<Lanes> lanes);
  virtual void use_lanes() {}
  // The stream itself, which becomes a lane of another connection: nothing more is delivered here, on_closed
  // neither. null where something is queued, or has come that was not delivered yet.
  virtual std::unique_ptr<ByteStream> take_stream();

  // For frames without attachments that bear no order to others, as heartbeats do: goes before all that is
  // queued, others of its kind too, but for a frame of which a part has left. Where nothing is queued on this
  // side, it is send().
  virtual void send_ahead(OutboundFrame&& frame) { send(std::move(frame)); }
};

}  // namespace weft::rpc
