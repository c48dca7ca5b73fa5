#include <weft/parallel/collectives/plan/internal/plan.h>

#include <algorithm>
#include <map>

namespace weft::collectives {

PlanCost cost_of(const Plan& plan) {
  PlanCost cost;
  for (const Step& step : plan.steps) {
    switch (step.kind) {
      case Step::Kind::send:
        ++cost.messages_sent;
        cost.elements_sent += step.range.size();
        break;
      case Step::Kind::reduce:
        cost.elements_reduced += step.range.size();
        [[fallthrough]];
      case Step::Kind::receive:
        ++cost.messages_received;
        cost.elements_received += step.range.size();
        break;
      case Step::Kind::finish:
      case Step::Kind::copy:
        break;
    }
  }
  return cost;
}

Plan in_sequence(Plan first, Plan second, std::size_t ahead) {
  const auto length = static_cast<std::uint32_t>(first.steps.size());
  std::map<int, std::uint32_t> sent, received;
  std::vector<bool> awaited(length, false);
  for (const Step& step : first.steps) {
    if (step.kind == Step::Kind::send) ++sent[step.peer];
    if (step.kind == Step::Kind::receive || step.kind == Step::Kind::reduce) ++received[step.peer];
    for (const std::uint32_t earlier : step.after) awaited[earlier] = true;
  }
  std::vector<std::uint32_t> last;
  for (std::uint32_t index = 0; index < length; ++index)
    if (!awaited[index]) last.push_back(index);
  std::vector<bool> is_ahead;  // of the second's steps
  for (Step& step : second.steps) {
    const bool leaves_at_once = step.kind == Step::Kind::send && step.place == Place::input &&
                                step.after.empty() && step.range.size() <= ahead;
    is_ahead.push_back(leaves_at_once);
    const bool waits = std::any_of(step.after.begin(), step.after.end(),
                                   [&](std::uint32_t index) { return !is_ahead[index]; });
    for (std::uint32_t& earlier : step.after) earlier += length;
    if (leaves_at_once) {
      ahead -= step.range.size();
    } else if (!waits) {
      step.after.insert(step.after.end(), last.begin(), last.end());
    }
    if (step.kind == Step::Kind::send) step.label += sent[step.peer];
    if (step.kind == Step::Kind::receive || step.kind == Step::Kind::reduce)
      step.label += received[step.peer];
    first.steps.push_back(std::move(step));
  }
  first.accumulator = std::max(first.accumulator, second.accumulator);
  return first;
}

}  // namespace weft::collectives
