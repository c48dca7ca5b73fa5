#include <weft/parallel/schedule/lowering.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <map>

namespace weft::schedule {
namespace {

bool has(const Schedule& schedule, Op op) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [op](const std::vector<Action>& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [op](const Action& action) { return action.op == op; });
  });
}

void expect_none(const char* operation, const Schedule& schedule, Op op) {
  if (has(schedule, op))
    refuse(operation, "the schedule has " + std::string(name_of(op)) + " actions, expected none");
}

// Returns the schedule with the lists that rewrite(given actions, rewritten actions) makes for each rank.
template <class Rewrite>
Schedule rewritten(const Schedule& schedule, Rewrite&& rewrite) {
  Schedule result = schedule;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    result.ranks[rank].clear();
    rewrite(schedule.ranks[rank], result.ranks[rank]);
  }
  return result;
}

// The stages that the list computes next, from `begin` on: at least `count`, if there are as many. A pair
// counts as a whole.
std::vector<int> next_stages(const std::vector<Action>& actions, std::size_t begin, std::size_t count) {
  std::vector<int> stages;
  for (std::size_t i = begin; i < actions.size() && stages.size() < count; ++i)
    for_each_part(actions[i], [&](const Action& action) {
      if (is_computation(action.op) && std::find(stages.begin(), stages.end(), action.stage) == stages.end())
        stages.push_back(action.stage);
    });
  return stages;
}

}  // namespace

Schedule add_recomputation(const Schedule& schedule, Recompute mode) {
  expect_none("add_recomputation", schedule, Op::recompute);
  if (mode == Recompute::never) return schedule;
  return rewritten(schedule, [&](const std::vector<Action>& given, std::vector<Action>& actions) {
    for (const Action& each : given) {
      for_each_part(each, [&](const Action& action) {
        if (action.op != Op::backward && action.op != Op::input_gradient) return;
        if (mode == Recompute::except_last && action.microbatch == schedule.microbatches - 1) return;
        actions.push_back({.op = Op::recompute,
                           .stage = action.stage,
                           .microbatch = action.microbatch,
                           .version = action.version});
      });
      actions.push_back(each);
    }
  });
}

Schedule merge_backwards(const Schedule& schedule) {
  return rewritten(schedule, [](const std::vector<Action>& given, std::vector<Action>& actions) {
    for (const Action& each : given) {
      Action first = each;
      first.op = Op::input_gradient;
      if (each.op == Op::weight_gradient && !actions.empty() && actions.back() == first) {
        actions.back().op = Op::backward;
      } else {
        actions.push_back(each);
      }
    }
  });
}

Schedule add_gradient_reduction(const Schedule& schedule, bool deferred) {
  expect_none("add_gradient_reduction", schedule, Op::reduce_gradient);
  return rewritten(schedule, [&](const std::vector<Action>& given, std::vector<Action>& actions) {
    std::map<int, std::size_t> last;  // of a stage: its last weight gradient
    for (std::size_t i = 0; i < given.size(); ++i)
      for_each_part(given[i], [&](const Action& action) {
        if (action.op == Op::backward || action.op == Op::weight_gradient) last[action.stage] = i;
      });
    int pending = -1;
    const auto wait = [&] {
      if (pending >= 0) actions.push_back({.op = Op::wait_reduce_gradient, .stage = pending});
      pending = -1;
    };
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i].op == Op::optimizer_step) wait();
      actions.push_back(given[i]);
      for (const auto& [stage, at] : last) {
        if (at != i) continue;
        wait();
        actions.push_back({.op = Op::reduce_gradient, .stage = stage});
        pending = stage;
        if (!deferred) wait();
      }
    }
    wait();
  });
}

Schedule add_unsharding(const Schedule& schedule, int active) {
  if (active < 1) refuse("add_unsharding", std::to_string(active) + " active stages, expected at least 1");
  expect_none("add_unsharding", schedule, Op::unshard);
  return rewritten(schedule, [&](const std::vector<Action>& given, std::vector<Action>& actions) {
    std::vector<int> unsharded;
    const auto drop = [&](int stage) { actions.push_back({.op = Op::reshard, .stage = stage}); };
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (is_computation(given[i].op) || given[i].op == Op::overlap) {
        const std::vector<int> wanted = next_stages(given, i, static_cast<std::size_t>(active));
        std::erase_if(unsharded, [&](int stage) {
          const bool leaves = std::find(wanted.begin(), wanted.end(), stage) == wanted.end();
          if (leaves) drop(stage);
          return leaves;
        });
        for (const int stage : wanted) {
          if (std::find(unsharded.begin(), unsharded.end(), stage) != unsharded.end()) continue;
          unsharded.push_back(stage);
          actions.push_back({.op = Op::unshard, .stage = stage});
        }
      }
      actions.push_back(given[i]);
    }
    for (const int stage : unsharded) drop(stage);
  });
}

Schedule add_optimizer_steps(const Schedule& schedule) {
  expect_none("add_optimizer_steps", schedule, Op::optimizer_step);
  return rewritten(schedule, [&](const std::vector<Action>& given, std::vector<Action>& actions) {
    actions = given;
    std::vector<int> stages = next_stages(given, 0, given.size() + 1);
    std::sort(stages.begin(), stages.end());
    for (const int stage : stages) actions.push_back({.op = Op::optimizer_step, .stage = stage});
  });
}

}  // namespace weft::schedule
