#include <weft/parallel/pipeline/internal/check_schedule.h>

#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <map>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;
using schedule::Action;
using schedule::Op;

namespace {

bool is_supported(const Action& action, Supported supported) {
  switch (action.op) {
    case Op::unshard:
    case Op::reshard:
      return supported.sharded;
    case Op::stash:
    case Op::load:
    case Op::optimizer_step:
      return supported.steps;
    default:
      return true;
  }
}

// Checks that all gradients of a rank's stages are reduced if necessary, and, if the schedule has optimizer
// steps, that a step uses them.
class GradientCheck {
 public:
  GradientCheck(const std::string& executor, const schedule::Schedule& schedule, bool reduces_all)
      : executor_(executor), schedule_(schedule), reduces_all_(reduces_all), steps_(has_steps(schedule)) {}

  void check() {
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      std::map<int, State> stages;
      for (const Action& each : schedule_.ranks[rank])
        schedule::for_each_part(each, [&](const Action& action) {
          apply(rank, action, stages[action.stage], reduces_all_ || is_replicated(action.stage));
        });
      for (const auto& [stage, state] : stages) {
        if (state.unreduced || state.is_reducing)
          refuse(rank, stage, "gradients that are not reduced, expected a reduction after the last backward");
        if (steps_ && state.unstepped)
          refuse(rank, stage, "gradients without an optimizer step, expected one after the last backward");
      }
    }
  }

 private:
  struct State {
    bool unreduced = false, is_reducing = false, is_reduced = false, unstepped = false;
  };

  bool is_replicated(int stage) const {
    return stage >= 0 && schedule_.placement[static_cast<std::size_t>(stage)].size() > 1;
  }
  [[noreturn]] void refuse(std::size_t rank, int stage, const std::string& text) const {
    throw Error(ErrorKind::invalid_argument, executor_ + ": rank " + std::to_string(rank) +
                                                 " has for stage " + std::to_string(stage) + " " + text +
                                                 ": see schedule::add_gradient_reduction and "
                                                 "schedule::add_optimizer_steps");
  }
  void apply(std::size_t rank, const Action& action, State& state, bool reduces) const {
    switch (action.op) {
      case Op::backward:
      case Op::weight_gradient:
        if (state.is_reducing || state.is_reduced)
          refuse(rank, action.stage,
                 "a backward after the start of a reduction, expected an optimizer step in between");
        state.unreduced = reduces;
        state.unstepped = true;
        return;
      case Op::reduce_gradient:
        if (state.is_reducing || state.is_reduced)
          refuse(rank, action.stage, "two reductions, expected an optimizer step in between");
        state.is_reducing = reduces;
        state.unreduced = false;
        return;
      case Op::wait_reduce_gradient:
        state.is_reducing = false;
        state.is_reduced = reduces;
        return;
      case Op::optimizer_step:
        if (state.unreduced || state.is_reducing)
          refuse(rank, action.stage,
                 "an optimizer step before the end of the reduction, expected it after the end");
        state.unstepped = state.is_reduced = false;
        return;
      default:
        return;
    }
  }

  const std::string& executor_;
  const schedule::Schedule& schedule_;
  const bool reduces_all_, steps_;
};

bool any_action(const schedule::Schedule& schedule, bool (*is)(const Action&)) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(),
                     [&](const auto& actions) { return std::any_of(actions.begin(), actions.end(), is); });
}

bool is_backward(const Action& action) {
  return action.op == Op::overlap || (schedule::is_computation(action.op) && action.op != Op::forward);
}

}  // namespace

void check_schedule(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule,
                    Supported supported) {
  const auto refuse = [&](ErrorKind kind, const std::string& text) {
    throw Error(kind, executor + ": " + text);
  };
  if (schedule.stages() != graph.size())
    refuse(ErrorKind::invalid_argument, "a schedule of " + std::to_string(schedule.stages()) +
                                            " stages, expected " + std::to_string(graph.size()) +
                                            " as in the model");
  schedule::validate(schedule);
  if (supported.steps && has_steps(schedule) && !supported.has_optimizer)
    refuse(ErrorKind::invalid_argument,
           "the schedule steps parameters, and there is no optimizer: give one in the options");
  for (const auto& replicas : schedule.placement)
    if (replicas.size() > 1 && !supported.replicas)
      refuse(ErrorKind::unsupported, "a schedule with a stage on " + std::to_string(replicas.size()) +
                                         " ranks, expected one rank for each stage");
  for (const auto& actions : schedule.ranks)
    for (const Action& action : actions)
      schedule::for_each_part(action, [&](const Action& part) {
        if (!is_supported(part, supported))
          refuse(ErrorKind::unsupported,
                 "the action " + schedule::to_string(part) + ": expected " +
                     (supported.steps ? "no sharded stages" : "computations and messages alone"));
      });
  GradientCheck(executor, schedule, supported.reduces_all).check();
}

void check_ties(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule) {
  for (const Tie& tie : graph.ties())
    for (const StageParameter& each : tie)
      if (has_steps(schedule) || schedule.placement[static_cast<std::size_t>(each.stage)].size() > 1)
        throw Error(ErrorKind::unsupported,
                    executor + ": the tied parameter " + each.name + " of stage " +
                        std::to_string(each.stage) +
                        ": expected one rank for the stage, and no optimizer in the options");
}

schedule::Schedule computations_of(schedule::Schedule schedule) {
  for (auto& actions : schedule.ranks)
    std::erase_if(actions, [](const Action& action) {
      return schedule::is_send(action.op) || schedule::is_receive(action.op) ||
             schedule::is_wait_send(action.op);
    });
  return schedule;
}

void refuse_shared_parameters(const std::string& executor, const StageGraph& graph,
                              const std::function<bool(int first, int second)>& may_share) {
  std::map<const c10::TensorImpl*, int> stage_of;
  for (int stage = 0; stage < graph.size(); ++stage) {
    if (!graph.is_here(stage)) continue;
    for (const at::Tensor& parameter : graph[stage].module->parameters()) {
      const int first = stage_of.try_emplace(parameter.unsafeGetTensorImpl(), stage).first->second;
      if (first != stage && !may_share(first, stage))
        throw Error(
            ErrorKind::invalid_argument,
            executor + ": the stages " + std::to_string(first) + " and " + std::to_string(stage) +
                " share a parameter: put the layers that have it together, or tie copies (LayerGraph::tie)");
    }
  }
}

void expect_backward(const schedule::Schedule& schedule) {
  if (!any_action(schedule, is_backward))
    throw Error(ErrorKind::failed_precondition,
                "pipeline step: the schedule has no backward: call evaluate(), or give another schedule");
}

bool has_steps(const schedule::Schedule& schedule) {
  return any_action(schedule, [](const Action& action) { return action.op == Op::optimizer_step; });
}

bool has_sharding(const schedule::Schedule& schedule) {
  return any_action(schedule, [](const Action& action) { return action.op == Op::unshard; });
}

void expect_all_unsharded(const std::string& executor, const schedule::Schedule& schedule) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::set<int> computed, unsharded;
    for (const Action& each : schedule.ranks[rank])
      schedule::for_each_part(each, [&](const Action& action) {
        if (schedule::is_computation(action.op)) computed.insert(action.stage);
        if (action.op == Op::unshard) unsharded.insert(action.stage);
      });
    for (const int stage : computed)
      if (!unsharded.contains(stage))
        throw Error(ErrorKind::invalid_argument,
                    executor + ": rank " + std::to_string(rank) + " has no UNSHARD for stage " +
                        std::to_string(stage) +
                        ", expected one for all stages: see schedule::add_unsharding");
  }
}

bool has_reductions(const schedule::Schedule& schedule) {
  return any_action(schedule, [](const Action& action) { return action.op == Op::reduce_gradient; });
}

}  // namespace weft::pipeline
