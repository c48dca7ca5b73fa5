#include <weft/parallel/schedule/simulate.h>

#include <weft/parallel/schedule/internal/dependencies.h>
#include <weft/parallel/schedule/internal/refuse.h>
#include <weft/parallel/schedule/internal/run.h>

#include <algorithm>
#include <numeric>

namespace weft::schedule {
namespace {

using Node = Dependencies::Node;

constexpr int steps = 4;  // after which the period of all known schedules is constant

const StageCost& cost_of(const Costs& costs, int stage) {
  return costs.stages[costs.stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
}

double seconds(const Costs& costs, const Action& action) {
  switch (action.op) {
    case Op::forward:
      return cost_of(costs, action.stage).forward;
    case Op::input_gradient:
      return cost_of(costs, action.stage).input_gradient;
    case Op::weight_gradient:
      return cost_of(costs, action.stage).weight_gradient;
    case Op::backward:
      return cost_of(costs, action.stage).input_gradient + cost_of(costs, action.stage).weight_gradient;
    case Op::recompute:
      return cost_of(costs, action.stage).recompute;
    case Op::unshard:
      return costs.unshard;
    case Op::optimizer_step:
      return costs.optimizer_step;
    case Op::overlap:
      return costs.overlap *
             std::accumulate(action.parts.begin(), action.parts.end(), 0.0,
                             [&](double sum, const Action& part) { return sum + seconds(costs, part); });
    default:
      return 0;
  }
}

double seconds(const Costs& costs, const EdgeMessage& message) {
  if (message.reduction()) return costs.reduce_gradient;
  const auto known = costs.links.find({message.from, message.to});
  return known == costs.links.end() ? costs.link : known->second;
}

// The peak of one rank. It depends on the order of the rank's actions, not on their times.
double peak_activations(const std::vector<Action>& actions, const Costs& costs) {
  std::map<std::pair<int, int>, double> held;  // by stage and micro-batch
  bool trains = false;
  std::map<std::pair<int, int>, bool> recomputed;
  for (const Action& each : actions)
    for_each_part(each, [&](const Action& action) {
      trains = trains || action.op == Op::backward || action.op == Op::input_gradient;
      if (action.op == Op::recompute) recomputed[{action.stage, action.microbatch}] = true;
    });
  double sum = 0, peak = 0;
  const auto hold = [&](const Action& action, double memory) {
    double& known = held[{action.stage, action.microbatch}];
    sum += memory - std::exchange(known, memory);
  };
  for (const Action& each : actions) {
    for_each_part(each, [&](const Action& action) {  // when it starts
      if (action.op != Op::forward && action.op != Op::recompute) return;
      const StageCost& cost = cost_of(costs, action.stage);
      hold(action, cost.activation + (action.op == Op::recompute ? cost.checkpoint : 0));
    });
    peak = std::max(peak, sum);
    for_each_part(each, [&](const Action& action) {  // when it completes
      const StageCost& cost = cost_of(costs, action.stage);
      if (action.op == Op::forward && !trains) hold(action, 0);
      if (action.op == Op::forward && recomputed.count({action.stage, action.microbatch}) > 0)
        hold(action, cost.checkpoint);
      if (action.op == Op::input_gradient) hold(action, cost.kept_for_weight_gradient);
      if (action.op == Op::backward || action.op == Op::weight_gradient) hold(action, 0);
    });
  }
  return peak;
}

}  // namespace

Prediction predict(const Schedule& schedule, const Costs& costs) {
  constexpr auto operation = "predict";
  if (costs.stages.size() != 1 && costs.stages.size() != static_cast<std::size_t>(schedule.stages()))
    refuse(operation, "costs of " + std::to_string(costs.stages.size()) + " stages, expected 1 or " +
                          std::to_string(schedule.stages()));
  const Dependencies dependencies(schedule, operation);
  std::vector<double> durations(dependencies.nodes());
  for (Node node = 0; node < dependencies.nodes(); ++node)
    durations[node] = dependencies.is_message(node) ? seconds(costs, dependencies.message_of(node))
                                                    : seconds(costs, dependencies.action(node));
  const Run executed = run(dependencies, durations, steps, operation);

  Prediction prediction;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::vector<Span>& spans = prediction.timeline.ranks.emplace_back();
    double& busy = prediction.busy.emplace_back();
    for (std::size_t i = 0; i < dependencies.length(rank); ++i) {
      const Node node = dependencies.node(rank, i);
      const Interval& interval = executed.intervals[node];
      busy += durations[node];
      prediction.time = std::max(prediction.time, interval.finish);
      spans.push_back({i, interval.start, interval.finish});
    }
    prediction.peak_activations.push_back(peak_activations(schedule.ranks[rank], costs));
  }
  for (std::size_t i = dependencies.actions(); i < dependencies.nodes(); ++i) {
    const EdgeMessage& each = dependencies.message_of(static_cast<Node>(i));
    if (each.reduction()) continue;
    const Action send =
        message(each.gradient ? Op::send_gradient : Op::send_activation, each.microbatch, each.edge);
    prediction.timeline.transfers.push_back(
        {send, each.from, each.to, executed.intervals[i].start, executed.intervals[i].finish});
  }
  if (prediction.time > 0) {
    const double busy = std::accumulate(prediction.busy.begin(), prediction.busy.end(), 0.0);
    const double whole = prediction.time * static_cast<double>(prediction.busy.size());
    prediction.bubble_with_barrier = (whole - busy) / whole;
  }
  if (dependencies.ranks() > 0 && dependencies.length(0) > 0) {
    // A rank starts with an action that computes, not with one that takes no time.
    Node first = 0;
    while (first + 1 < dependencies.length(0) && durations[first] == 0) ++first;
    const std::size_t last = (steps - 1) * dependencies.nodes() + first;
    prediction.period =
        executed.intervals[last].start - executed.intervals[last - dependencies.nodes()].start;
    if (prediction.period > 0)
      prediction.bubble = (prediction.period - prediction.busy[0]) / prediction.period;
  }
  return prediction;
}

}  // namespace weft::schedule
