// Limits: the sizes and numbers that an agent accepts from a peer. Each limit is checked before the memory
// that it bounds is allocated.
#pragma once

#include <cstdint>

namespace weft::rpc {

struct Limits {
  std::uint64_t message = std::uint64_t{16} << 30;  // bytes of all attachments of one frame
  std::uint32_t header = 64U << 20;                 // bytes of one frame's header
  std::uint32_t segments = 64;                      // Cap'n Proto segments of a header
  std::uint32_t attachments = 4096;                 // of one frame
  std::uint32_t nesting = 64;                       // levels of a header; a nested value uses two
  // Requests received from one peer that have no reply yet. The handshake grants this number to the
  // peer as credit: further calls wait at the caller. A peer that ignores the credit gets resource_exhausted
  // at twice the number.
  std::uint32_t calls = 65536;
  // Requests received over all connections that have no reply yet; further requests are refused.
  std::uint32_t calls_total = 1'000'000;
  // Bytes of the requests that `calls` counts; a single frame may exceed this limit. The limit also applies
  // to the bytes of replies that the peer has not acknowledged, for which it is at least 8 MiB
  // (rpc/endpoint/session.h).
  std::uint64_t in_flight = std::uint64_t{4} << 30;
  // Bytes of arriving frames of all connections, from the moment at which a frame announces its size. If this
  // limit is exceeded, connections wait for room for a second, then requests are refused
  // (rpc/transport/admission.h).
  std::uint64_t in_flight_total = std::uint64_t{32} << 30;
  // Calls of this agent in flight, to all peers. Further calls fail at once with resource_exhausted, so that
  // a slow peer does not make its callers use more and more memory.
  std::uint64_t outgoing_calls = 1'000'000;
  // Bytes of attachments of the calls that `outgoing_calls` counts; a single call may exceed this limit.
  std::uint64_t outgoing_bytes = std::uint64_t{8} << 30;
  // Bytes of the other arguments of the calls that `outgoing_calls` counts. Only calls with more than 1 KiB
  // of such arguments count.
  std::uint64_t outgoing_values = std::uint64_t{4} << 30;
};

}  // namespace weft::rpc
