// measured_costs, replayed_time: costs and times of measured steps, for predict() and to compare with it.
// Pure functions.
#pragma once

#include <weft/parallel/schedule/simulate.h>

#include <span>

namespace weft::schedule {

// Returns the median over micro-batches and steps for each stage and computation. A full backward counts half
// as its input gradient and half as its weight gradient. An optimizer step has the median over all stages.
// Actions that were not measured have no cost, and overlapped pairs are not counted. invalid_argument: a
// timeline has other ranks or actions than the schedule.
WEFT_EXPORT Costs measured_costs(const Schedule& schedule, std::span<const Timeline> steps);

// Returns the time of a step without messages and waits, in which each action takes its measured time and
// starts as early as its rank and its inputs allow. A measured step takes longer by the overhead of its
// executor; a step predicted from measured_costs() is shorter, because there no action takes longer than
// usual. invalid_argument: as above.
WEFT_EXPORT double replayed_time(const Schedule& schedule, const Timeline& step);

}  // namespace weft::schedule
