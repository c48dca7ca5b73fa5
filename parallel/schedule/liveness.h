// liveness: what each rank holds from which action to which, and how many buffers that needs.
//
// An executor allocates a buffer for each slot once. The slots of received values are the credits that a
// receiver can give to its senders. A pure function.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <cstdint>
#include <vector>

namespace weft::schedule {

// What a rank holds.
enum class Held : std::uint8_t {
  activation,           // of a stage, from its forward to the end of its backward
  received_activation,  // from its receive to the forward that uses it
  received_gradient,    // from its receive to the backward that uses it
  sent_activation,      // from the forward to the end of its send: the wait, or the send if no wait follows
  sent_gradient,
  weights,  // a stashed version, from the stash to the last computation that uses it
};
// The number of kinds.
inline constexpr int held_count = static_cast<int>(Held::weights) + 1;

// One value that a rank holds.
struct Lifetime {
  Held held = Held::activation;
  int stage = -1;
  int microbatch = -1;              // of weights: the version
  Edge edge = {};                   // of a received or sent value
  std::size_t first = 0, last = 0;  // actions of the rank, both included
  int slot = 0;                     // no two lifetimes of one kind, stage and edge that overlap have one slot
};

// All that one rank holds.
struct RankLiveness {
  std::vector<Lifetime> lifetimes;  // ascending by `first`
  // The buffers of a kind that the rank needs, over all stages and edges.
  WEFT_EXPORT int slots(Held held) const;
  // Of one edge: the credits of its sender.
  WEFT_EXPORT int slots(Held held, Edge edge) const;
};
// By rank.
struct Liveness {
  std::vector<RankLiveness> ranks;
};

// invalid_argument: an invalid schedule (validate.h).
WEFT_EXPORT Liveness liveness(const Schedule& schedule);

}  // namespace weft::schedule
