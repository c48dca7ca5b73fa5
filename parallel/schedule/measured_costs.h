// measured_costs, replayed_time: costs and times of measured steps, for predict() and to compare with it.
// Pure functions.
#pragma once

#include <weft/parallel/schedule/simulate.h>

#include <span>

namespace weft::schedule {

// Of each stage and computation, the median over micro-batches and steps. A full backward counts half as its
// input gradient and half as its weight gradient. An optimizer step takes the median over all stages. What
// was not measured takes no time. An overlapped pair is not counted. invalid_argument: a timeline of other
// ranks or actions.
WEFT_EXPORT Costs measured_costs(const Schedule& schedule, std::span<const Timeline> steps);

// The time of a step whose actions take as long as they took, each as early as its rank and its inputs allow,
// without messages and waits. A measured step takes longer by the overhead of its executor; a step predicted
// from measured_costs() is shorter, because there no action takes longer than usual. invalid_argument: as
// above.
WEFT_EXPORT double replayed_time(const Schedule& schedule, const Timeline& step);

}  // namespace weft::schedule
