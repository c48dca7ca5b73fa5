// ShmHandshake: turns a connected Unix socket into a stream through shared memory. The other side also runs a
// ShmHandshake.
//
// It verifies that the other side runs as the same user, exchanges the segments (hello.h), and tests whether
// each side may read the other's memory. It belongs to one loop. It ends exactly once, with a call of `done`
// on the loop, after begin() has returned. It fails with permission_denied (another user), with
// protocol_error (malformed bytes, a missing or surplus descriptor, a segment that is not sealed), or with
// unavailable (the peer is lost or silent).
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/shm/options.h>

#include <asio/local/stream_protocol.hpp>

#include <memory>
#include <string>

namespace weft::rpc {

class WEFT_EXPORT ShmHandshake {
 public:
  using Socket = asio::local::stream_protocol::socket;  // connected
  // Receives the stream, or the error.
  using Done = UniqueFunction<void(Result<std::unique_ptr<ByteStream>>)>;

  // Starts a handshake; call it on the loop. description: of the stream. kept: released when the stream is
  // closed, or when the handshake fails.
  static std::shared_ptr<ShmHandshake> begin(Socket socket, std::shared_ptr<Loop> loop,
                                             const ShmOptions& options, std::string description, Done done,
                                             std::shared_ptr<void> kept = nullptr);
  virtual ~ShmHandshake() = default;

  virtual void abort() = 0;  // call on the loop; the handshake fails with shut_down, unless it has ended

 protected:
  ShmHandshake() = default;
};

}  // namespace weft::rpc
