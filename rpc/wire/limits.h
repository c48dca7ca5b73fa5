// Limits: what an agent accepts from a peer. Each is checked before the memory that it bounds is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::rpc {

struct Limits {
  std::uint64_t message = std::uint64_t{16} << 30;  // bytes of one frame's attachments together
  std::uint32_t header = 64U << 20;                 // bytes of one frame's header
  std::uint32_t segments = 64;                      // Cap'n Proto segments of a header
  std::uint32_t attachments = 4096;                 // of one frame
  std::uint32_t nesting = 64;                       // levels of a header; a value within a value takes two
  // Requests that have come in over one connection and are not answered yet. This is the credit that the
  // peer gets with the handshake: beyond it calls wait at the caller. One that takes no notice is refused at
  // twice as much, with resource_exhausted.
  std::uint32_t calls = 65536;
  std::uint32_t calls_total = 1'000'000;  // of all connections, until answered; refused beyond
  // Bytes; one frame may go beyond. Also of answers and notifications that the peer has not acknowledged, of
  // which at least 8 MiB may be kept (rpc/agent/session.h).
  std::uint64_t in_flight = std::uint64_t{4} << 30;
  // Bytes, of all connections, from the moment when a frame announces its size: beyond, connections wait for
  // room for a second, then requests are refused (rpc/transport/admission.h).
  std::uint64_t in_flight_total = std::uint64_t{32} << 30;
  // Calls that this agent has made and that have not ended, to all its peers: beyond these a call ends at
  // once with resource_exhausted, so that a slow peer does not make its callers grow.
  std::uint64_t outgoing_calls = 1'000'000;
  std::uint64_t outgoing_bytes = std::uint64_t{8} << 30;   // of attachments; one call may go beyond
  std::uint64_t outgoing_values = std::uint64_t{4} << 30;  // bytes of the rest, of calls with more than 1 KiB
};

}  // namespace weft::rpc
