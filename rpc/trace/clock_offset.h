// ClockOffset: the difference between another agent's clock and this one's, by the midpoint of a round trip
// (Cristian's algorithm): the other agent read its clock between the request's departure and the reply's
// arrival.
//
// Thread-safety: values; measure_clock() blocks, so do not call it on the agents' own threads.
#pragma once

#include <weft/rpc/endpoint/peer.h>

#include <cstdint>
#include <vector>

namespace weft::rpc {

// Nanoseconds: this clock at the departure of the request and at the arrival of the reply; the other clock in
// between.
struct ClockSample {
  std::int64_t sent = 0, other = 0, came = 0;
};

struct ClockOffset {
  std::int64_t ahead = 0;      // nanoseconds: the other clock's time minus this one's
  std::int64_t uncertain = 0;  // in both directions: half the round trip
};

// From the shortest round trip. At least one sample.
WEFT_EXPORT ClockOffset clock_offset(const std::vector<ClockSample>& samples);

// Calls the peer's `weft.clock` for `rounds` times. Throws the errors of the calls: not_found if the peer has
// no tracer.
WEFT_EXPORT ClockOffset measure_clock(const Peer& peer, std::size_t rounds = 16);

}  // namespace weft::rpc
