// Passes that add the remaining actions of a step to computations and messages. Pure functions from a
// schedule to another.
//
// Each of them may be applied before or after place_communication(). They keep the order of the given
// actions. invalid_argument: the schedule has the actions that the pass adds.
#pragma once

#include <weft/parallel/schedule/schedule.h>

namespace weft::schedule {

// The micro-batches whose forwards are recomputed: all, all except the last one (on the last stage its
// backward follows its forward directly), or none.
enum class Recompute : std::uint8_t { always, except_last, never };

// Adds a recomputation directly before each backward. An overlapped pair becomes a recomputation followed by
// the pair.
WEFT_EXPORT Schedule add_recomputation(const Schedule& schedule, Recompute mode);

// An input gradient and the weight gradient that directly follows it, of the same stage and micro-batch,
// become one backward: nothing is computed between them, and a whole backward costs less than its parts.
WEFT_EXPORT Schedule merge_backwards(const Schedule& schedule);

// Adds a reduction of the stage's gradients after the last weight gradient of each stage, and a wait for it.
// deferred false: the wait follows directly. true: the wait is placed before the rank's next reduction or
// optimizer step, or at the rank's end.
WEFT_EXPORT Schedule add_gradient_reduction(const Schedule& schedule, bool deferred = false);

// Adds the actions that gather and drop the parameters of sharded stages (FSDP): a rank keeps the whole
// parameters of the next `active` stages that it computes, and reshards the others. An overlapped pair needs
// all its stages at the same time.
WEFT_EXPORT Schedule add_unsharding(const Schedule& schedule, int active = 3);

// Adds an optimizer step of each stage at the end of its rank.
WEFT_EXPORT Schedule add_optimizer_steps(const Schedule& schedule);

}  // namespace weft::schedule
