// ShmHandshake: makes a stream out of a connected Unix socket, together with the same on the other side.
//
// Verifies that the other side runs as this user, exchanges segments (hello.h) and finds out whether each may
// read the other's memory. Lives on one loop until it ends, exactly once, by its callback there, never from
// within begin(). Whatever does not fit ends it: another user (permission_denied), garbage, a descriptor too
// many or too few, a segment that is not sealed (protocol_error), a lost or silent peer (unavailable).
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
  using Socket = asio::local::stream_protocol::socket;
  using Done = UniqueFunction<void(Result<std::unique_ptr<ByteStream>>)>;

  // On the loop. `description` is the stream's; `kept` is let go of when that is closed, or none comes of it.
  static std::shared_ptr<ShmHandshake> begin(Socket socket, std::shared_ptr<Loop> loop,
                                             const ShmOptions& options, std::string description, Done done,
                                             std::shared_ptr<void> kept = nullptr);
  virtual ~ShmHandshake() = default;
  virtual void abort() = 0;  // on the loop: it ends with shut_down, unless it has ended

 protected:
  ShmHandshake() = default;
};

}  // namespace weft::rpc
