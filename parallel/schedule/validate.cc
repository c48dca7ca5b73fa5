#include <weft/parallel/schedule/validate.h>

#include <weft/parallel/schedule/internal/dependencies.h>
#include <weft/parallel/schedule/internal/refuse.h>
#include <weft/parallel/schedule/internal/run.h>

#include <map>
#include <set>
#include <utility>

namespace weft::schedule {
namespace {

using Node = Dependencies::Node;

// The state of the parameters of one stage on one rank.
struct Weights {
  int latest = 0, loaded = 0;
  std::set<int> stashed = {};
  std::map<int, int> used = {};  // by the forward of a micro-batch
  bool unsharded = false;
};

class ParameterCheck {
 public:
  ParameterCheck(const Dependencies& dependencies, const Schedule& schedule)
      : dependencies_(dependencies), schedule_(schedule) {}

  void check() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      std::map<int, Weights> stages;
      std::set<int> sharded;
      for (const Action& action : schedule_.ranks[rank])
        if (action.op == Op::unshard || action.op == Op::reshard) sharded.insert(action.stage);
      for (std::size_t i = 0; i < schedule_.ranks[rank].size(); ++i)
        for_each_part(schedule_.ranks[rank][i], [&](const Action& action) {
          node_ = dependencies_.node(rank, i);
          apply(action, stages[action.stage], sharded.count(action.stage) > 0);
        });
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    refuse("validate", dependencies_.describe(node_) + ": " + why);
  }

  void expect(int version, int expected) const {
    if (version != expected)
      fail("version " + std::to_string(version) + " of the weights, expected " + std::to_string(expected));
  }

  void apply(const Action& action, Weights& weights, bool sharded) const {
    switch (action.op) {
      case Op::stash:
        expect(action.version, weights.latest);
        weights.stashed.insert(action.version);
        return;
      case Op::load:
        if (action.version != weights.latest && weights.stashed.count(action.version) == 0) {
          std::string kept = "the latest, " + std::to_string(weights.latest);
          for (const int stashed : weights.stashed) kept += ", or the stashed " + std::to_string(stashed);
          fail("version " + std::to_string(action.version) + " of the weights, expected " + kept);
        }
        weights.loaded = action.version;
        return;
      case Op::optimizer_step:
        if (action.version >= 0) expect(action.version, weights.latest + 1);
        weights.loaded = ++weights.latest;
        return;
      case Op::unshard:
        if (weights.unsharded) fail("the stage is unsharded, expected it to be sharded");
        weights.unsharded = true;
        return;
      case Op::reshard:
        if (!weights.unsharded) fail("the stage is sharded, expected it to be unsharded");
        weights.unsharded = false;
        return;
      default:
        if (!is_computation(action.op)) return;
        if (action.version >= 0) expect(action.version, weights.loaded);
        if (action.op == Op::forward) {
          weights.used[action.microbatch] = weights.loaded;
        } else if (const int version = weights.used[action.microbatch]; version != weights.loaded) {
          fail("version " + std::to_string(weights.loaded) + " of the weights, expected " +
               std::to_string(version) + " as in the forward");
        }
        if (sharded && !weights.unsharded) fail("the stage is sharded, expected UNSHARD before it");
    }
  }

  const Dependencies& dependencies_;
  const Schedule& schedule_;
  Node node_ = 0;
};

// Runs the schedule with sends and receives that block until their other half is reached. This finds one
// order of all messages.
class Rendezvous {
 public:
  Rendezvous(const Dependencies& dependencies, const Schedule& schedule)
      : dependencies_(dependencies), schedule_(schedule), next_(schedule.ranks.size()) {}

  void check() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank)
        while (next_[rank] < schedule_.ranks[rank].size() && step(rank)) progress = true;
    }
    std::string stuck;
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] < schedule_.ranks[rank].size())
        stuck += (stuck.empty() ? "" : "; ") + dependencies_.describe(dependencies_.node(rank, next_[rank]));
    if (!stuck.empty())
      refuse("prove_message_order",
             "the ranks list their messages in different orders. If sends and receives "
             "block, these wait for each other: " +
                 stuck);
  }

 private:
  // The message of a send or receive, and the rank at its other end.
  std::pair<Action, std::size_t> other_half(const Action& action) const {
    const Op op = action.op == Op::send_activation      ? Op::receive_activation
                  : action.op == Op::receive_activation ? Op::send_activation
                  : action.op == Op::send_gradient      ? Op::receive_gradient
                                                        : Op::send_gradient;
    const Action other = message(op, action.microbatch, action.edge);
    return {other, static_cast<std::size_t>(schedule_.rank_of(other.stage, other.microbatch))};
  }

  bool step(std::size_t rank) {
    const Action& action = schedule_.ranks[rank][next_[rank]];
    if (is_send(action.op) || is_receive(action.op)) {
      const auto [other, peer] = other_half(action);
      if (next_[peer] == schedule_.ranks[peer].size() || schedule_.ranks[peer][next_[peer]] != other)
        return false;
      ++next_[peer];
    }
    if (action.op == Op::wait_reduce_gradient && !all_reduce(rank, action.stage)) return false;
    if (action.op == Op::reduce_gradient) ++reductions_[{action.stage, static_cast<int>(rank)}].first;
    // Other actions never block: the inputs of a computation have been received before it, and waits follow
    // their sends.
    ++next_[rank];
    return true;
  }

  // The next reduction for which the rank waits: whether all replicas of the stage have started it.
  bool all_reduce(std::size_t rank, int stage) {
    int& waited = reductions_[{stage, static_cast<int>(rank)}].second;
    for (const int replica : schedule_.placement[static_cast<std::size_t>(stage)])
      if (reductions_[{stage, replica}].first <= waited) return false;
    ++waited;
    return true;
  }

  const Dependencies& dependencies_;
  const Schedule& schedule_;
  std::vector<std::size_t> next_;                                  // of each rank
  std::map<std::pair<int, int>, std::pair<int, int>> reductions_;  // (stage, rank): started, waited for
};

}  // namespace

void validate(const Schedule& schedule) {
  const Dependencies dependencies(schedule, "validate");
  ParameterCheck(dependencies, schedule).check();
  run(dependencies, std::vector<double>(dependencies.nodes()), 1, "validate");
}

void prove_message_order(const Schedule& schedule) {
  validate(schedule);
  const Dependencies dependencies(schedule, "prove_message_order");
  Rendezvous(dependencies, schedule).check();
}

}  // namespace weft::schedule
