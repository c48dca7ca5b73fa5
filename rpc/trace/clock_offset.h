// ClockOffset: the difference between another agent's clock and this agent's clock. It is estimated from the
// midpoint of a round trip (Cristian's algorithm), because the other agent reads its clock between the
// departure of the request and the arrival of the reply.
//
// Thread-safety: values; measure_clock() blocks, so do not call it on the agents' own threads.
#pragma once

#include <weft/rpc/endpoint/peer.h>

#include <cstdint>
#include <vector>

namespace weft::rpc {

// One round trip, in nanoseconds. sent, received: this agent's clock when the request was sent, and when the
// reply arrived. other: the other agent's clock in between.
struct ClockSample {
  std::int64_t sent = 0, other = 0, received = 0;
};

struct ClockOffset {
  std::int64_t ahead = 0;      // nanoseconds: the other clock's time minus this clock's
  std::int64_t uncertain = 0;  // nanoseconds, in both directions: half the round trip
};

// Computes the offset from the shortest round trip. samples: at least one.
WEFT_EXPORT ClockOffset clock_offset(const std::vector<ClockSample>& samples);

// Calls the peer's `weft.clock` for `rounds` times. Throws the errors of the calls: not_found if the peer has
// no tracer.
WEFT_EXPORT ClockOffset measure_clock(const Peer& peer, std::size_t rounds = 16);

}  // namespace weft::rpc
