// Connection: carries whole frames in both directions until it closes. The interface of every transport.
//
// Frames arrive in the order in which they were sent, except frames of send_ahead(). A connection belongs to
// one loop, on which its members are called, and on which it calls its observer. Delivered frames have passed
// check_header(). If on_frame() throws an Error, the connection closes. close() drops queued frames. finish()
// delivers nothing more, sends the queued frames as long as the other side reads them, and closes. After
// close(), finish() or the end of the other side, on_closed() is called exactly once, with the reason, and no
// other call follows. start() may call on_closed() before it returns; close() and finish() do not.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/wire/frame.h>

#include <chrono>
#include <memory>
#include <string>

namespace weft::rpc {

class Admission;
class Credentials;
class StripedStream;

// Options that all connections of an agent share.
struct ConnectionOptions {
  ConnectionOptions() = default;
  ConnectionOptions(const Limits& accepted, std::shared_ptr<MemoryPool> pool = nullptr)  // NOLINT: as limits
      : limits(accepted), memory(std::move(pool)) {}

  // The limits of the frames that this side accepts.
  Limits limits;

  std::shared_ptr<MemoryPool> memory;  // for arriving attachments; null: allocate each
  // If set, connections to other processes use TLS. The peer's certificate must be for `expected_agent`, or,
  // if that is empty, for the host that was dialled. If the address is a path on this host, any trusted name
  // is accepted.
  std::shared_ptr<const Credentials> credentials;
  std::string expected_agent;

  std::chrono::nanoseconds connect_timeout{0};  // the timeout of one connect(); 0: the system's limit
  // Admits large frames. If set, the first frame must be a Hello of limited size. Null: the peer is trusted,
  // and only the limits of a single frame apply.
  std::shared_ptr<Admission> admission;
};

// Receives the frames of one connection. Called on its loop, one call at a time; must not block.
class WEFT_EXPORT ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;
  // A whole frame has arrived. An empty header: a large message was skipped, a request for which there was no
  // room, or a reply that no call waits for. If on_frame() throws an Error, the connection closes.
  virtual void on_frame(InboundFrame&& frame) = 0;
  // Whether a call waits for the large reply with this prefix. If not, the reply is skipped.
  virtual bool awaits(const Prefix& reply) { return (void)reply, true; }
  // The connection has closed. No call follows.
  virtual void on_closed(const Error& reason) = 0;
};

class WEFT_EXPORT Connection {
 public:
  virtual ~Connection() = default;

  virtual const std::shared_ptr<Loop>& loop() const = 0;                 // never changes
  virtual void start(std::shared_ptr<ConnectionObserver> observer) = 0;  // begins delivery; call it once
  // Queues the frame, of any size, and does not block. After close() or finish() it drops the frame.
  virtual void send(OutboundFrame&& frame) = 0;

  virtual std::uint64_t received_bytes() const = 0;  // bytes so far, including bytes of incomplete frames
  // End the connection (see above). No effect on a connection that has ended.
  virtual void finish(const Error& reason) = 0;
  virtual void close(const Error& reason) = 0;

  virtual std::string describe() const = 0;  // "tcp 127.0.0.1:4000 -> 127.0.0.1:5000"
  // The proven identity of the other side (ByteStream::identity).
  virtual std::string identity() const { return {}; }
  virtual bool has_ended() const { return false; }   // ByteStream::has_ended
  virtual bool in_process() const { return false; }  // true: the other side is in this process
  virtual std::optional<HostPair> hosts() const { return std::nullopt; }  // ByteStream::hosts

  // For streams with is_network_flow() (ByteStream). take_stream(): detaches the stream, which becomes a lane
  // of another connection. The observer is not called again, not even on_closed(). Null if frames are queued,
  // or if bytes have arrived that were not delivered. add_lanes(): the stream becomes part of a
  // StripedStream, which is returned.
  virtual bool is_network_flow() const { return false; }
  virtual std::unique_ptr<ByteStream> take_stream() { return nullptr; }
  virtual StripedStream* add_lanes(std::vector<std::unique_ptr<ByteStream>>) { return nullptr; }

  // For frames without attachments whose order relative to other frames does not matter, such as heartbeats.
  // The frame is sent before all queued frames, including earlier ones of send_ahead(), but after a frame
  // that has been sent in part. If nothing is queued, send_ahead() is the same as send().
  virtual void send_ahead(OutboundFrame&& frame) { send(std::move(frame)); }
};

}  // namespace weft::rpc
