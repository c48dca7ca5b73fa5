// ClockOffset: how far another agent's clock is ahead of this one's, by the midpoint of a round trip
// (Cristian's algorithm): the answer was written somewhere between the question's leaving and its own
// arrival.
//
// Thread-safety: values; measure_clock() blocks, and is not called on the agents' own threads.
#pragma once

#include <weft/rpc/agent/peer.h>

#include <cstdint>
#include <vector>

namespace weft::rpc {

// Nanoseconds: of this clock when the question left and the answer came, of the other in between.
struct ClockSample {
  std::int64_t sent = 0, other = 0, came = 0;
};

struct ClockOffset {
  std::int64_t ahead = 0;      // nanoseconds: the other clock's time less this one's
  std::int64_t uncertain = 0;  // either way: half the round trip
};

// By the shortest round trip. One sample at least.
WEFT_EXPORT ClockOffset clock_offset(const std::vector<ClockSample>& samples);

// Asks the peer's `weft.clock`, so many times. Throws what the calls fail with: not_found where it has no
// tracer.
WEFT_EXPORT ClockOffset measure_clock(const Peer& peer, std::size_t rounds = 16);

}  // namespace weft::rpc
