// measured_costs: the costs of stages in measured steps, for predict(). A pure function.
#pragma once

#include <weft/parallel/schedule/simulate.h>

#include <span>

namespace weft::schedule {

// Of each stage and computation, the median over micro-batches and steps. A full backward counts half as its
// input gradient and half as its weight gradient. An optimizer step takes the median over all stages. What
// was not measured takes no time. An overlapped pair is not counted. invalid_argument: a timeline of other
// ranks or actions.
WEFT_EXPORT Costs measured_costs(const Schedule& schedule, std::span<const Timeline> steps);

}  // namespace weft::schedule
