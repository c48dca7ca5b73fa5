#include <weft/parallel/schedule/measured_costs.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace weft::schedule {

Costs measured_costs(const Schedule& schedule, std::span<const Timeline> steps) {
  std::map<std::pair<int, Op>, std::vector<double>> durations;
  for (const Timeline& step : steps) {
    if (step.ranks.size() != schedule.ranks.size())
      refuse("measured_costs", "a timeline of " + std::to_string(step.ranks.size()) + " ranks, expected " +
                                   std::to_string(schedule.ranks.size()));
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank)
      for (const Span& span : step.ranks[rank]) {
        const auto& actions = schedule.ranks[rank];
        if (span.action >= actions.size())
          refuse("measured_costs", "action " + std::to_string(span.action) + " of rank " +
                                       std::to_string(rank) + ", which has " +
                                       std::to_string(actions.size()));
        const Action& action = actions[span.action];
        if (is_computation(action.op))
          durations[{action.stage, action.op}].push_back(span.finish - span.start);
      }
  }
  const auto median = [&](std::size_t stage, Op op) {
    const auto found = durations.find({static_cast<int>(stage), op});
    if (found == durations.end()) return 0.0;
    const auto middle = found->second.begin() + static_cast<std::ptrdiff_t>(found->second.size() / 2);
    std::nth_element(found->second.begin(), middle, found->second.end());
    return *middle;
  };
  Costs costs;
  costs.stages.resize(schedule.placement.size());
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const double backward = median(stage, Op::backward);
    costs.stages[stage].forward = median(stage, Op::forward);
    costs.stages[stage].recompute = median(stage, Op::recompute);
    costs.stages[stage].input_gradient = backward > 0 ? backward / 2 : median(stage, Op::input_gradient);
    costs.stages[stage].weight_gradient = backward > 0 ? backward / 2 : median(stage, Op::weight_gradient);
  }
  return costs;
}

}  // namespace weft::schedule
