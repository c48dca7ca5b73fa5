// The ByteStream over two rings in shared memory, one a direction, and a Unix socket that ties them together.
//
// A side that sleeps is woken by a byte on the socket: unlike an eventfd it cannot be made to block who
// writes it, and it is watched anyway, since its end is the other process's. On a loop that spins the rings
// are polled, and no system call is made while both sides have work. What a peer wrote before it ended is
// read, then eof if it had shut down its writing or closed, else connection_reset. Bulk access where the
// handshake proved that each side may read the other's memory.
#pragma once

#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/shm/peer_memory.h>
#include <weft/rpc/transport/shm/segment.h>

#include <asio/local/stream_protocol.hpp>

#include <optional>
#include <string>

namespace weft::rpc {

// What a handshake has agreed on.
struct ShmEnds {
  asio::local::stream_protocol::socket socket;
  ShmSegment outbound;  // this side's own
  ShmSegment inbound;
  std::optional<PeerMemory> memory;  // of the other side, where both may read
  BulkRange bulk;
  std::string description;
  std::string identity;
  std::shared_ptr<void> kept = nullptr;  // let go of when the stream is closed
};

// On the loop, whose io_context is the socket's.
WEFT_EXPORT std::unique_ptr<ByteStream> make_shm_stream(ShmEnds ends, std::shared_ptr<Loop> loop);

}  // namespace weft::rpc
