// A ByteStream that uses two rings in shared memory, one for each direction, and a Unix socket.
//
// A byte on the socket wakes a side that sleeps. Unlike an eventfd, the socket cannot block its writer. This
// side watches the socket anyway, because the socket ends with the other process. On a loop that spins, the
// rings are polled, and no system call is made while both sides have work. If the peer ends, read() first
// returns the bytes that the peer has written. After them, it returns eof if the peer had shut down writing
// or closed the stream, otherwise connection_reset. BulkAccess is available if the handshake proved that each
// side can read the other's memory.
#pragma once

#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/shm/peer_memory.h>
#include <weft/rpc/transport/shm/segment.h>

#include <asio/local/stream_protocol.hpp>

#include <optional>
#include <string>

namespace weft::rpc {

// The result of a handshake.
struct ShmEnds {
  asio::local::stream_protocol::socket socket;
  ShmSegment outbound;  // this side's segment, which it writes to
  ShmSegment inbound;
  std::optional<PeerMemory> memory;  // the other side's memory, if both sides may read each other's
  BulkRange bulk;
  std::string description;
  std::string identity;
  std::shared_ptr<void> kept = nullptr;  // released when the stream is closed
};

// Makes the stream. Call it on the loop, whose io_context the socket uses.
WEFT_EXPORT std::unique_ptr<ByteStream> make_shm_stream(ShmEnds ends, std::shared_ptr<Loop> loop);

}  // namespace weft::rpc
