#include <weft/parallel/schedule/measured_costs.h>

#include <weft/parallel/schedule/internal/dependencies.h>
#include <weft/parallel/schedule/internal/refuse.h>
#include <weft/parallel/schedule/internal/run.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace weft::schedule {

namespace {

void check(const Schedule& schedule, const Timeline& step, const std::string& operation) {
  if (step.ranks.size() != schedule.ranks.size())
    refuse(operation, "a timeline of " + std::to_string(step.ranks.size()) + " ranks, expected " +
                          std::to_string(schedule.ranks.size()));
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
    for (const Span& span : step.ranks[rank])
      if (const auto actions = schedule.ranks[rank].size(); span.action >= actions)
        refuse(operation, "action " + std::to_string(span.action) + " of rank " + std::to_string(rank) +
                              ", expected a number below " + std::to_string(actions));
}

}  // namespace

Costs measured_costs(const Schedule& schedule, std::span<const Timeline> steps) {
  std::map<std::pair<int, Op>, std::vector<double>> durations;
  for (const Timeline& step : steps) {
    check(schedule, step, "measured_costs");
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
      for (const Span& span : step.ranks[rank]) {
        const Action& action = schedule.ranks[rank][span.action];
        const bool is_step = action.op == Op::optimizer_step;
        if (is_computation(action.op) || is_step)
          durations[{is_step ? -1 : action.stage, action.op}].push_back(span.finish - span.start);
      }
  }
  const auto median = [&](int stage, Op op) {
    const auto found = durations.find({stage, op});
    if (found == durations.end()) return 0.0;
    const auto middle = found->second.begin() + static_cast<std::ptrdiff_t>(found->second.size() / 2);
    std::nth_element(found->second.begin(), middle, found->second.end());
    return *middle;
  };
  Costs costs;
  costs.stages.resize(schedule.placement.size());
  costs.optimizer_step = median(-1, Op::optimizer_step);
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    StageCost& cost = costs.stages[static_cast<std::size_t>(stage)];
    const double backward = median(stage, Op::backward);
    cost.forward = median(stage, Op::forward);
    cost.recompute = median(stage, Op::recompute);
    cost.input_gradient = backward > 0 ? backward / 2 : median(stage, Op::input_gradient);
    cost.weight_gradient = backward > 0 ? backward / 2 : median(stage, Op::weight_gradient);
  }
  return costs;
}

double replayed_time(const Schedule& schedule, const Timeline& step) {
  constexpr auto operation = "replayed_time";
  check(schedule, step, operation);
  const Dependencies dependencies(schedule, operation);
  std::vector<double> durations(dependencies.nodes());
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
    for (const Span& span : step.ranks[rank])
      durations[dependencies.node(rank, span.action)] = span.finish - span.start;
  double time = 0;
  for (const Interval& interval : run(dependencies, durations, 1, operation).intervals)
    time = std::max(time, interval.finish);
  return time;
}

}  // namespace weft::schedule
