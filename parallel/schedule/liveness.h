// liveness(): the values that each rank of a schedule holds, from which action to which action, and the
// number of buffers that these values need.
//
// A slot is a buffer. Values that a rank holds at the same time have different slots, so that an executor can
// allocate one buffer for each slot. For an edge, the number of slots for received values is the number of
// values that the schedule needs in flight. An executor may allow more values in flight. A pure function.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <cstdint>
#include <vector>

namespace weft::schedule {

// The kinds of values that a rank holds.
enum class Held : std::uint8_t {
  activation,           // from the forward of a stage to the end of its backward
  received_activation,  // from the receive to the forward that uses it
  received_gradient,    // from the receive to the backward that uses it
  sent_activation,      // from the forward to the end of the send: the wait, or the send if no wait follows
  sent_gradient,        // from the backward to the end of the send
  weights,              // a stashed version, from the stash to the last computation that uses it
};
// The number of kinds.
inline constexpr int held_count = static_cast<int>(Held::weights) + 1;

// One value that a rank holds.
struct Lifetime {
  Held held = Held::activation;
  int stage = -1;
  int microbatch = -1;              // Held::weights: the version
  Edge edge = {};                   // the edge that a received or sent value crosses
  std::size_t first = 0, last = 0;  // indices of actions of the rank, both included
  int slot = 0;                     // lifetimes of one kind, stage and edge that overlap have different slots
};

// The values that one rank holds.
struct RankLiveness {
  std::vector<Lifetime> lifetimes;  // ascending by `first`
  // The number of buffers that the rank needs for values of a kind, summed over all stages and edges.
  WEFT_EXPORT int slots(Held held) const;
  // The number of buffers for the values of one edge.
  WEFT_EXPORT int slots(Held held, Edge edge) const;
};
// The result of liveness().
struct Liveness {
  std::vector<RankLiveness> ranks;  // by rank
};

// Throws invalid_argument if the schedule is invalid (validate.h).
WEFT_EXPORT Liveness liveness(const Schedule& schedule);

}  // namespace weft::schedule
