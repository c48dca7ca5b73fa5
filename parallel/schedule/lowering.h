// Passes that add the remaining actions of a step to computations and messages. Pure functions from a
// schedule to another.
//
// Each of them may be applied before or after place_communication(). They keep the order of the given
// actions. invalid_argument: the schedule has the actions that the pass adds.
#pragma once

#include <weft/parallel/schedule/schedule.h>

namespace weft::schedule {

// Whose forwards are recomputed: of all micro-batches, of all but the last one, whose backward follows its
// forward on the last stage, or of none.
enum class Recompute : std::uint8_t { always, except_last, never };

// Adds a recomputation directly before each backward. Pairs that overlap become a recomputation and the pair.
WEFT_EXPORT Schedule add_recomputation(const Schedule& schedule, Recompute mode);

// An input gradient and the weight gradient that directly follows it, of the same stage and micro-batch,
// become one backward: nothing is computed between them, and a whole backward costs less than its parts.
WEFT_EXPORT Schedule merge_backwards(const Schedule& schedule);

// After the last weight gradient of each stage: start to reduce the stage's gradients, and wait for it. The
// wait is at once, or, deferred, before the rank's next reduction or optimizer step, or at its end.
WEFT_EXPORT Schedule add_gradient_reduction(const Schedule& schedule, bool deferred = false);

// Gathers the parameters of sharded stages (FSDP): a rank keeps the next `active` stages that it computes
// unsharded, and drops the others. A pair that overlaps needs all its stages at a time.
WEFT_EXPORT Schedule add_unsharding(const Schedule& schedule, int active = 3);

// At the end of each rank: a step of each of its stages.
WEFT_EXPORT Schedule add_optimizer_steps(const Schedule& schedule);

}  // namespace weft::schedule
