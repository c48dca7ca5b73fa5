#include <weft/parallel/schedule/communication.h>

#include <weft/parallel/schedule/internal/dependencies.h>
#include <weft/parallel/schedule/internal/refuse.h>
#include <weft/parallel/schedule/internal/run.h>

#include <algorithm>
#include <deque>

namespace weft::schedule {

Schedule place_communication(const Schedule& computations) {
  constexpr auto operation = "place_communication";
  const Dependencies dependencies(computations, operation);
  if (dependencies.has_messages()) refuse(operation, "the schedule has messages, expected computations only");
  std::vector<double> durations(dependencies.nodes());
  for (Dependencies::Node node = 0; node < dependencies.actions(); ++node)
    for_each_part(dependencies.action(node), [&](const Action& action) {
      if (is_computation(action.op)) durations[node] += action.op == Op::backward ? 2 : 1;
    });

  Schedule placed = computations;
  for (std::vector<Action>& actions : placed.ranks) actions.clear();
  const auto list = [&](int rank) -> std::vector<Action>& {
    return placed.ranks[static_cast<std::size_t>(rank)];
  };
  // The run starts actions and messages in an order that respects all dependencies. Both ranks of a message
  // have it at the same place of that order.
  for (const Dependencies::Node node : run(dependencies, durations, 1, operation).order) {
    if (!dependencies.is_message(node)) {
      list(dependencies.rank(node)).push_back(dependencies.action(node));
      continue;
    }
    const EdgeMessage& each = dependencies.message_of(node);
    if (each.reduction()) continue;
    list(each.from).push_back(
        message(each.gradient ? Op::send_gradient : Op::send_activation, each.microbatch, each.edge));
    list(each.to).push_back(
        message(each.gradient ? Op::receive_gradient : Op::receive_activation, each.microbatch, each.edge));
  }
  return placed;
}

Schedule place_waits(const Schedule& schedule, int outstanding) {
  if (outstanding < 1)
    refuse("place_waits", std::to_string(outstanding) + " outstanding sends, expected at least 1");
  Schedule placed = schedule;
  for (std::vector<Action>& actions : placed.ranks) {
    const std::vector<Action> given = std::exchange(actions, {});
    std::deque<Action> sent;
    const auto wait = [&] {
      const Action& oldest = sent.front();
      actions.push_back(
          message(oldest.op == Op::send_gradient ? Op::wait_send_gradient : Op::wait_send_activation,
                  oldest.microbatch, oldest.edge));
      sent.pop_front();
    };
    for (const Action& action : given) {
      if (is_wait_send(action.op)) refuse("place_waits", "the schedule has waits, expected none");
      if (is_send(action.op)) {
        if (sent.size() == static_cast<std::size_t>(outstanding)) wait();
        sent.push_back(action);
      }
      actions.push_back(action);
    }
    while (!sent.empty()) wait();
  }
  return placed;
}

}  // namespace weft::schedule
