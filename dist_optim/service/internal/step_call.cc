#include <weft/dist_optim/service/internal/step_call.h>

#include <algorithm>
#include <atomic>
#include <cmath>

namespace weft::dist_optim {
namespace {

using Action = StepDecision::Action;

// Whether an owner has certainly not stepped: it replied with a refusal, or was never reached.
bool surely_not_stepped(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::RemoteError& found) {
    return found.kind() != rpc::ErrorKind::handler_failed && found.kind() != rpc::ErrorKind::internal &&
           found.kind() != rpc::ErrorKind::deadline_exceeded;
  } catch (const rpc::Error& found) {
    return found.execution() == rpc::Execution::not_sent;
  } catch (...) {
    return false;
  }
}

// The reason why a step was given up although every object had its part.
std::exception_ptr given_up_error(const StepRequest& request, const StepDecision& decision) {
  std::string missing;
  for (const std::uint32_t pass : decision.missing)
    if (pass < request.unseen.size())
      missing += (missing.empty() ? "" : "; ") + to_string(request.unseen[pass]) +
                 " has no gradient on any module, and no backward of it has begun";
  if (!missing.empty())
    return std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::failed_precondition,
                   "step: " + missing + ": await pass.backward() first; nothing has stepped"));
  return std::make_exception_ptr(rpc::Error(
      rpc::ErrorKind::failed_precondition,
      "the total norm of order " + std::to_string(request.options.norm_type) +
          " of the step's gradients is not finite, so that it cannot be clipped: nothing has stepped"));
}

}  // namespace

bool StepCall::one_owner(const std::vector<rref::ReferencePtr>& modules) {
  return std::all_of(modules.begin(), modules.end(),
                     [&](const auto& module) { return module->owner() == modules.front()->owner(); });
}

void StepCall::start(Modules modules, StepRequest request, Rows rows, rpc::Callback decided, Done done) {
  std::shared_ptr<StepCall> call(new StepCall(std::move(modules), std::move(request), std::move(rows),
                                              std::move(decided), std::move(done)));
  if (one_owner(call->modules_)) {
    call->step_at_one_owner();
  } else {
    call->prepare();
  }
}

void StepCall::step_at_one_owner() {
  std::vector<rpc::Future<StepOutcome>> calls;
  // The objects wait for each other: if one was never reached, the others must be notified of the end.
  const auto given_up = std::make_shared<std::atomic<bool>>(false);
  for (std::size_t i = 0; i < modules_.size(); ++i)
    calls.push_back(
        ask<&OptimizerService::step>(modules_[i], request_, std::uint64_t{modules_.size()}, rows_[i]));
  // Not before all calls are made: each object must see the call before its abort.
  for (auto& one : calls)
    one = std::move(one).then([self = shared_from_this(), given_up](rpc::Result<StepOutcome>&& outcome) {
      if (!outcome.ok() && !given_up->exchange(true)) self->abort_all();
      return std::move(outcome);
    });
  decided_();  // each object runs its calls in order
  when_settled(std::move(calls), [self = shared_from_this()](std::vector<rpc::Result<StepOutcome>> outcomes) {
    const auto failed = std::find_if(outcomes.begin(), outcomes.end(), [](auto& one) { return !one.ok(); });
    if (failed != outcomes.end()) {
      const auto known = std::find_if(outcomes.begin(), outcomes.end(), [](auto& one) { return one.ok(); });
      const Action action = known != outcomes.end() ? known->value().decision.action : Action::give_up;
      return self->done_(self->failure(outcomes, action != Action::give_up, action));
    }
    StepResult result;
    for (auto& outcome : outcomes) {
      result.applied = outcome.value().decision.action == Action::apply;
      result.total_norm = outcome.value().decision.total_norm;
      result.versions.push_back(outcome.value().version);
      if (outcome.value().decision.action == Action::give_up)
        return self->done_(given_up_error(self->request_, outcome.value().decision));
    }
    self->done_(std::move(result));
  });
}

void StepCall::prepare() {
  std::vector<rpc::Future<StepPart>> calls;
  for (std::size_t i = 0; i < modules_.size(); ++i)
    calls.push_back(ask<&OptimizerService::prepare>(modules_[i], request_, rows_[i]));
  when_settled(std::move(calls), [self = shared_from_this()](std::vector<rpc::Result<StepPart>> parts) {
    self->decide_all(std::move(parts));
  });
}

void StepCall::decide_all(std::vector<rpc::Result<StepPart>> parts) {
  std::vector<StepPart> prepared;
  for (auto& part : parts)
    if (part.ok()) prepared.push_back(part.value());
  if (prepared.size() < parts.size()) {
    abort_all();
    decided_();
    return done_(failure(parts, false, Action::give_up));
  }
  const StepDecision decision = decide(prepared, request_.options, request_.unseen.size());
  if (decision.action == Action::give_up) {
    abort_all();
    decided_();
    return done_(given_up_error(request_, decision));
  }
  commit(decision);
}

void StepCall::commit(const StepDecision& decision) {
  const std::optional<std::string> trainer = request_.trainer;
  std::vector<rpc::Future<std::uint64_t>> calls;
  for (const auto& module : modules_)
    calls.push_back(ask<&OptimizerService::commit>(module, request_.number, decision, trainer));
  decided_();
  when_settled(std::move(calls),
               [self = shared_from_this(), decision](std::vector<rpc::Result<std::uint64_t>> versions) {
                 StepResult result{decision.action == Action::apply, decision.total_norm, {}};
                 for (auto& version : versions) {
                   if (!version.ok()) {
                     self->abort_all();  // for objects that never received their commit
                     return self->done_(self->failure(versions, true, decision.action));
                   }
                   result.versions.push_back(version.value());
                 }
                 self->done_(std::move(result));
               });
}

void StepCall::abort_all() {
  const std::optional<std::string> trainer = request_.trainer;
  for (const auto& module : modules_)
    ask<&OptimizerService::abort>(module, request_.number, trainer).then([](auto&&) {});
}

// Returns the objects that have stepped, after a failure. committing: the objects without an error were
// asked to commit.
template <class T>
std::exception_ptr StepCall::failure(const std::vector<rpc::Result<T>>& results, bool committing,
                                     Action action) const {
  StepError::Objects stepped, not_stepped, unknown;
  std::string names, reasons;
  rpc::ErrorKind kind = rpc::ErrorKind::internal;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string name =
        (rows_[i] ? "embedding shard " : "module ") + std::to_string(i) + " on " + modules_[i]->owner().name;
    const auto& error = results[i].error();
    if (error == nullptr && committing && action == Action::apply) {
      stepped.push_back(i);
      names += (names.empty() ? "" : ", ") + name;
      continue;
    }
    // An object that was only asked to prepare has changed nothing, whatever happened to its owner.
    const bool two_phases = std::is_same_v<T, StepPart>;
    const bool known = error == nullptr || two_phases || action == Action::skip || surely_not_stepped(error);
    (known ? not_stepped : unknown).push_back(i);
    if (error == nullptr) continue;
    if (reasons.empty()) kind = rpc::error_kind(error);
    reasons += "; " + name + (known ? " has not: " : " may or may not have: ") + rpc::what_of(error);
  }
  const std::string whole = stepped.empty()
                                ? (unknown.empty() ? "nothing has stepped" : "nothing else has stepped")
                                : "only a part has stepped (" + names + ")";
  return std::make_exception_ptr(StepError(
      kind, "a step over " + std::to_string(results.size()) + " modules has failed: " + whole + reasons,
      std::move(stepped), std::move(not_stepped), std::move(unknown)));
}

}  // namespace weft::dist_optim
