#include <weft/parallel/schedule/internal/run.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

namespace weft::schedule {
namespace {

// Earlier first; at one time messages first, so that a message starts as soon as its value is computed.
struct Ready {
  double time;
  bool action;
  std::size_t node;

  bool operator<(const Ready& other) const {
    return std::tie(other.time, other.action, other.node) < std::tie(time, action, node);
  }
};

}  // namespace

Run run(const Dependencies& dependencies, const std::vector<double>& durations, int steps,
        const std::string& operation) {
  using Node = Dependencies::Node;
  const std::size_t nodes = dependencies.nodes(), total = nodes * static_cast<std::size_t>(steps);
  const std::size_t ranks = dependencies.ranks();
  // From the last action of a rank to its first one in the next step.
  std::vector<std::size_t> next_step(nodes, nodes);
  std::vector<std::uint32_t> waiting(total);
  for (std::size_t i = 0; i < total; ++i)
    waiting[i] = dependencies.predecessors(static_cast<Node>(i % nodes));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (dependencies.length(rank) == 0) continue;
    const Node first = dependencies.node(rank, 0);
    next_step[dependencies.node(rank, dependencies.length(rank) - 1)] = first;
    for (std::size_t step = 1; step < static_cast<std::size_t>(steps); ++step)
      ++waiting[step * nodes + first];
  }

  Run result;
  result.intervals.resize(total);
  result.order.reserve(total);
  std::map<std::pair<int, int>, double> link_free;
  std::priority_queue<Ready> ready;
  for (std::size_t i = 0; i < total; ++i)
    if (waiting[i] == 0) ready.push({0, !dependencies.is_message(static_cast<Node>(i % nodes)), i});
  while (!ready.empty()) {
    const Ready next = ready.top();
    ready.pop();
    const Node node = static_cast<Node>(next.node % nodes);
    Interval& interval = result.intervals[next.node];
    interval.start = next.time;
    if (!next.action && !dependencies.message_of(node).reduction()) {
      const EdgeMessage& message = dependencies.message_of(node);
      double& free = link_free[{message.from, message.to}];
      interval.start = std::max(interval.start, free);
      free = interval.start + durations[node];
    }
    interval.finish = interval.start + durations[node];
    result.order.push_back(static_cast<Node>(next.node));
    const auto completes = [&](std::size_t after) {
      Interval& waits = result.intervals[after];
      waits.start = std::max(waits.start, interval.finish);
      if (--waiting[after] == 0)
        ready.push({waits.start, !dependencies.is_message(static_cast<Node>(after % nodes)), after});
    };
    const std::size_t base = next.node - node;
    dependencies.for_each_successor(node, [&](Node after) { completes(base + after); });
    if (next_step[node] != nodes && base + nodes < total) completes(base + nodes + next_step[node]);
  }
  if (result.order.size() == total) return result;
  std::vector<bool> completed(nodes);
  for (const Node node : result.order)
    if (node < nodes) completed[node] = true;
  refuse(operation, "the schedule deadlocks: " + dependencies.describe_cycle(completed));
}

}  // namespace weft::schedule
