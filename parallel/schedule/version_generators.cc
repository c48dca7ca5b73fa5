// Schedules without a flush: a stage keeps several versions of its weights.
//
// Version v of a stage is its weights after v steps. The lists are written in two passes. The first one gives
// computations, each with its version, and the steps. The second one adds `stash` before the step that
// replaces a version that a later computation needs, and `load` where the version changes.
#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/internal/rank_order.h>
#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <numeric>

namespace weft::schedule {
namespace {

std::vector<Action> with_kept_versions(const std::vector<Action>& actions) {
  std::map<int, std::size_t> last_use;  // of a version
  for (std::size_t i = 0; i < actions.size(); ++i)
    if (is_computation(actions[i].op)) last_use[actions[i].version] = i;
  std::vector<Action> kept;
  int latest = 0, loaded = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (is_computation(action.op) && action.version != loaded) {
      loaded = action.version;
      kept.push_back({.op = Op::load, .stage = action.stage, .version = loaded});
    }
    if (action.op == Op::optimizer_step) {
      const auto use = last_use.find(latest);
      if (use != last_use.end() && use->second > i)
        kept.push_back({.op = Op::stash, .stage = action.stage, .version = latest});
      loaded = latest = action.version;
    }
    kept.push_back(action);
  }
  return kept;
}

// The replicas of the stages, and how many forwards each replica of a stage computes before its first
// backward: as many as keep all later stages busy.
struct Replication {
  std::vector<int> replicas;
  std::vector<int> warmup;

  explicit Replication(std::vector<int> given) : replicas(std::move(given)), warmup(replicas.size()) {
    int from_here = 0;
    for (std::size_t stage = replicas.size(); stage-- > 0;) {
      from_here += replicas[stage];
      warmup[stage] = (from_here + replicas[stage] - 1) / replicas[stage] - 1;
    }
  }

  // The steps that a replica of the stage has done when it computes the forward of the micro-batch.
  int steps_before(std::size_t stage, int microbatch) const {
    return std::max(0, microbatch / replicas[stage] - warmup[stage]);
  }
};

std::vector<Action> pipedream_rank(const Replication& plan, std::size_t stage, int replica, int microbatches,
                                   bool vertical_sync) {
  const int n = plan.replicas[stage];
  const int rounds = (microbatches + n - 1) / n;
  const int number = static_cast<int>(stage);
  const auto computation = [&](Op op, int round) -> Action {
    const int microbatch = round * n + replica;
    if (microbatch >= microbatches) return {};  // the last round is not full
    // A step of stage 0 stands for as many micro-batches as that stage has replicas.
    const int version = vertical_sync ? plan.steps_before(0, microbatch) * plan.replicas[0] / n
                                      : plan.steps_before(stage, microbatch);
    return {.op = op, .stage = number, .microbatch = microbatch, .version = version};
  };
  std::vector<Action> actions;
  const int warmup = std::min(plan.warmup[stage], rounds);
  for (int round = 0; round < warmup; ++round) actions.push_back(computation(Op::forward, round));
  for (int round = 0; round < rounds; ++round) {
    if (warmup + round < rounds) actions.push_back(computation(Op::forward, warmup + round));
    actions.push_back(computation(Op::backward, round));
    if (n > 1) {
      actions.push_back({.op = Op::reduce_gradient, .stage = number});
      actions.push_back({.op = Op::wait_reduce_gradient, .stage = number});
    }
    actions.push_back({.op = Op::optimizer_step, .stage = number, .version = round + 1});
  }
  std::erase_if(actions, [](const Action& action) { return action.op == Op::idle; });
  return with_kept_versions(actions);
}

}  // namespace

Schedule pipedream(const Shape& shape, const PipedreamOptions& options) {
  Schedule schedule = empty_schedule("pipedream", shape, 1, 1);
  std::vector<int> replicas = options.replicas;
  if (replicas.empty()) replicas.assign(static_cast<std::size_t>(shape.ranks), 1);
  const int ranks = std::accumulate(replicas.begin(), replicas.end(), 0);
  if (ranks != shape.ranks || *std::min_element(replicas.begin(), replicas.end()) < 1)
    refuse("pipedream", "the stages have " + std::to_string(ranks) + " replicas, expected " +
                            std::to_string(shape.ranks) +
                            ", one for each rank, and at least 1 for each stage");
  const Replication plan(replicas);
  schedule.placement.clear();
  int rank = 0;
  for (std::size_t stage = 0; stage < replicas.size(); ++stage) {
    schedule.placement.emplace_back();
    for (int replica = 0; replica < replicas[stage]; ++replica, ++rank) {
      schedule.placement.back().push_back(rank);
      schedule.ranks[static_cast<std::size_t>(rank)] =
          pipedream_rank(plan, stage, replica, shape.microbatches, options.vertical_sync);
    }
  }
  schedule.edges = chain(schedule.stages());
  return schedule;
}

Schedule pipedream_2bw(const Shape& shape, int batches) {
  if (batches < 1) refuse("pipedream_2bw", std::to_string(batches) + " batches, expected at least 1");
  const int m = shape.microbatches;
  Schedule schedule = empty_schedule("pipedream_2bw", {shape.ranks, m * batches, shape.chunks}, 1, 1);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    // A batch starts only when the batch before the previous one is complete: no more than m are ahead.
    const int warmup = std::min(shape.ranks - 1 - rank, m);
    const auto computation = [&](Op op, int microbatch) -> Action {
      return {.op = op, .stage = rank, .microbatch = microbatch, .version = std::max(0, microbatch / m - 1)};
    };
    std::vector<Action> actions;
    for (int i = 0; i < warmup; ++i) actions.push_back(computation(Op::forward, i));
    for (int i = 0; i < schedule.microbatches; ++i) {
      if (warmup + i < schedule.microbatches) actions.push_back(computation(Op::forward, warmup + i));
      actions.push_back(computation(Op::backward, i));
      if ((i + 1) % m == 0)
        actions.push_back({.op = Op::optimizer_step, .stage = rank, .version = (i + 1) / m});
    }
    schedule.ranks[static_cast<std::size_t>(rank)] = with_kept_versions(actions);
  }
  return schedule;
}

}  // namespace weft::schedule
