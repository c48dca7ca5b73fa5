// The steps of OwnedParameters: gathered, prepared and applied, separately or in a round.
#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <utility>

namespace weft::dist_optim {
namespace {

void note(tensor::StreamMarks& made, const Gradients& gradients) {
  made = {};
  for (const auto& [index, gradient] : gradients) made.note(gradient);
}

void pass_on(tensor::StreamMarks& made, const Gradients& gradients) {
  for (const auto& [index, gradient] : gradients) made.pass_on(gradient);
}

}  // namespace

void OwnedParameters::step(const std::string& trainer, std::vector<PassGradients> passes, Stepped done) {
  PendingStep step;
  try {
    step = gather(trainer, std::move(passes));
  } catch (...) {
    return done(std::current_exception(), 0);
  }
  step.done = std::move(done);
  carry_out(trainer, std::move(step));
}

OwnedParameters::PendingStep OwnedParameters::gather(const std::string& trainer,
                                                     std::vector<PassGradients> passes) const {
  PendingStep step{{}, sum_gradients(trainer, passes), {}, {}, {}};
  note(step.made, step.gradients);
  rpc::MutexLock lock(mutex_);
  step.name = ledger_.name_of(trainer);
  step.passes = passes_to_step(passes);
  return step;
}

void OwnedParameters::carry_out(const std::string& trainer, PendingStep step) {
  const Stepped done = step.done;
  Applied applied;
  try {
    bool synchronous = false;
    {
      rpc::MutexLock lock(mutex_);
      synchronous = round_.has_value();
    }
    if (synchronous) {
      arrive(trainer, std::move(step));
      close_rounds();
      return;
    }
    applied = apply({{trainer, step.passes}}, step.gradients);
  } catch (...) {
    applied.error = std::current_exception();
  }
  done(applied.error, applied.version);
}

StepPart OwnedParameters::prepare(const std::string& trainer, std::uint64_t number,
                                  std::vector<PassGradients> gradients, const StepOptions& options,
                                  std::size_t passes) {
  options.check();
  std::set<PassKey> unused;  // without gradients here
  for (const PassGradients& one : gradients)
    if (one.gradients.empty()) unused.insert(one.pass);
  PendingStep step = gather(trainer, std::move(gradients));
  prepare_gradients(step.gradients, passes, options);
  const StepPart part = measure(step.gradients, options);
  note(step.made, step.gradients);

  rpc::MutexLock lock(mutex_);
  auto refuse = [&](const std::string& why) WEFT_REQUIRES(mutex_) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "trainer " + ledger_.name_of(trainer) + " cannot step: " + why);
  };
  if (!handles_.contains(trainer)) refuse("it has no optimizer on these parameters");
  for (PassKey pass : step.passes) {
    if (committed_.contains(pass))
      refuse("pass " + to_string(pass) + " has stepped these parameters already");
    if (preparing(pass) != prepared_.end())
      refuse("pass " + to_string(pass) + " belongs to another step that is in flight");
  }
  if (round_) {
    round_->expect(trainer);
    for (const auto& [key, other] : prepared_)
      if (key.first == trainer) refuse("another of its steps is in flight in this round");
  }
  if (ledger_.paused()) refuse("a restore is in flight; try again");
  if (prepared_.contains({trainer, number}))
    refuse("step " + std::to_string(number) + " is prepared already");
  // A step without gradients changes no version, so it breaks no bound.
  const bool hogwild = mode_->kind == StepMode::Kind::hogwild;
  const bool bound = round_ || (!hogwild && !step.gradients.empty());
  const auto passes_of_it = step.passes;
  std::erase_if(step.passes, [&](PassKey pass) { return unused.contains(pass); });
  if (bound) {
    // In a round, the version of a pass without gradients is irrelevant.
    ledger_.check_step(trainer, round_ ? step.passes : passes_of_it);
    ledger_.prepare_step(trainer, passes_of_it);
  }
  prepared_.emplace(std::pair{trainer, number},
                    PreparedStep{std::move(step), passes_of_it, {}, bound, false});
  return part;
}

void OwnedParameters::commit(const std::string& trainer, std::uint64_t number, const StepDecision& decision,
                             Stepped done) {
  PendingStep step;
  {
    rpc::MutexLock lock(mutex_);
    auto found = prepared_.find({trainer, number});
    if (found == prepared_.end() || found->second.committing) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition, "trainer " + ledger_.name_of(trainer) +
                                                                " has no step " + std::to_string(number) +
                                                                " prepared on these parameters");
    }
    found->second.committing = true;
    step = std::move(found->second.step);
    for (PassKey pass : step.passes) committed_[pass] = trainer;
    for (PassKey pass : found->second.passes)  // those without gradients end now
      if (!committed_.contains(pass)) ledger_.release(pass);
  }
  step.done = [this, trainer, number, passes = step.passes, done = std::move(done)](std::exception_ptr error,
                                                                                    Version version) {
    // If a step failed before it changed anything, it may be tried again with the same passes.
    if (error != nullptr && version == 0) {
      rpc::MutexLock lock(mutex_);
      for (PassKey pass : passes) committed_.erase(pass);
    }
    end_prepared(trainer, number);
    done(error, version);
  };
  try {
    if (decision.action == StepDecision::Action::skip) step.gradients.clear();
    pass_on(step.made, step.gradients);
    scale_gradients(step.gradients, decision.scale);
    note(step.made, step.gradients);
  } catch (...) {
    return step.done(std::current_exception(), 0);
  }
  carry_out(trainer, std::move(step));
}

void OwnedParameters::abort(const std::string& trainer, std::uint64_t number) {
  {
    rpc::MutexLock lock(mutex_);
    auto found = prepared_.find({trainer, number});
    if (found == prepared_.end() || found->second.committing) return;
  }
  end_prepared(trainer, number);
}

// Releases the passes that have ended in the meantime.
void OwnedParameters::end_prepared(const std::string& trainer, std::uint64_t number) {
  std::vector<PassKey> released;
  After after;
  {
    rpc::MutexLock lock(mutex_);
    auto node = prepared_.extract({trainer, number});
    if (node.empty()) return;  // it ended with its trainer
    PreparedStep& prepared = node.mapped();
    if (prepared.holds) ledger_.end_prepared(trainer, prepared.passes);
    released = std::move(prepared.released);
    tidy(after);
  }
  finish(after);
  for (PassKey pass : released) release(pass);
}

// The prepared step that a pass is in.
OwnedParameters::PreparedSteps::iterator OwnedParameters::preparing(PassKey pass) {
  return std::find_if(prepared_.begin(), prepared_.end(), [&](const auto& entry) {
    const auto& passes = entry.second.passes;
    return std::find(passes.begin(), passes.end(), pass) != passes.end();
  });
}

Gradients OwnedParameters::sum_gradients(const std::string& trainer,
                                         const std::vector<PassGradients>& passes) const {
  {
    rpc::MutexLock lock(mutex_);
    if (!handles_.contains(trainer)) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "trainer " + ledger_.name_of(trainer) + " has no optimizer on these parameters");
    }
  }
  {
    const auto turn = optimizer_.turn();
    for (const PassGradients& pass : passes) optimizer_.target().check(pass.gradients);
  }
  Gradients sum;
  for (const PassGradients& pass : passes) add_gradients(sum, pass.gradients);
  return sum;
}

// A pass that did not use these parameters need not have read them; a pass with gradients must have.
std::vector<PassKey> OwnedParameters::passes_to_step(const std::vector<PassGradients>& passes) const {
  std::vector<PassKey> keys;
  for (const PassGradients& pass : passes) {
    bool used = std::any_of(pass.gradients.begin(), pass.gradients.end(),
                            [](const auto& gradient) { return gradient.second.defined(); });
    if (used || ledger_.pin(pass.pass)) keys.push_back(pass.pass);
  }
  return keys;
}

void OwnedParameters::arrive(const std::string& trainer, PendingStep step) {
  rpc::MutexLock lock(mutex_);
  if (ended_ != nullptr) std::rethrow_exception(ended_);
  ledger_.check_step(trainer, step.passes);
  round_->arrive(trainer);
  ledger_.hold(trainer);
  pending_[trainer] = std::move(step);
}

// Applies the round if it is complete, and the next one if that is. One thread at a time does this, and also
// handles rounds that become complete meanwhile.
void OwnedParameters::close_rounds() {
  for (;;) {
    std::map<std::string, PendingStep> closing;
    PassLedger::PassesOfTrainers passes;
    bool mean = false;
    {
      rpc::MutexLock lock(mutex_);
      if (!round_ || !round_->complete()) return;
      round_->close();
      mean = mode_->mean;
      closing = std::exchange(pending_, {});
      for (const auto& [trainer, step] : closing) passes[trainer] = step.passes;
    }
    Applied applied;
    try {
      // Sums in the order of the trainers' names: their keys are drawn at random, and sums of floats depend
      // on the order.
      std::multimap<std::string, const Gradients*> by_name;
      for (auto& [trainer, step] : closing) {
        pass_on(step.made, step.gradients);
        by_name.emplace(step.name, &step.gradients);
      }
      Gradients sum;
      for (const auto& [name, gradients] : by_name) add_gradients(sum, *gradients);
      if (mean) scale_gradients(sum, 1 / static_cast<double>(closing.size()));
      applied = apply(passes, sum);
    } catch (...) {
      applied.error = std::current_exception();
    }
    After after;
    {
      rpc::MutexLock lock(mutex_);
      for (auto& [trainer, step] : closing) {
        round_->finish(trainer);
        ledger_.end_hold(trainer);
        after.callbacks.push_back(
            [done = std::move(step.done), applied] { done(applied.error, applied.version); });
      }
      fail_outdated(after);
      tidy(after);
    }
    finish(after);
  }
}

OwnedParameters::Applied OwnedParameters::apply(const PassLedger::PassesOfTrainers& passes,
                                                const Gradients& gradients) {
  Applied applied;
  if (gradients.empty()) {
    rpc::MutexLock lock(mutex_);
    for (const auto& [trainer, keys] : passes) ledger_.end_without_step(trainer, keys);
    applied.version = ledger_.newest();
  } else {
    gate_.exclusive([&] {
      const auto turn = optimizer_.turn();
      streams_.follow();
      const auto version = apply_alone(passes, gradients, applied);
      streams_.note();
      return version;
    });
  }
  After after;
  {
    rpc::MutexLock lock(mutex_);
    tidy(after);
  }
  finish(after);
  return applied;
}

std::optional<OwnedParameters::Version> OwnedParameters::apply_alone(
    const PassLedger::PassesOfTrainers& passes, const Gradients& gradients, Applied& applied) {
  optimizer_.target().check(gradients);
  std::optional<ParameterVersions::Tensors> copy;
  for (;;) {
    {
      rpc::MutexLock lock(mutex_);
      bool hogwild = mode_->kind == StepMode::Kind::hogwild;
      std::uint64_t staleness = 0;
      if (mode_->kind == StepMode::Kind::bounded_staleness) {
        for (const auto& [trainer, keys] : passes) staleness = ledger_.check_step(trainer, keys);
      } else if (hogwild) {
        staleness = ledger_.staleness(passes);
      }
      if (hogwild || copy || !ledger_.read_by_others(passes)) {
        // From here on, new passes pin the version that is about to be made; they wait at the gate until it
        // is made.
        ledger_.step(passes);
        applied.version = ledger_.newest();
        ++staleness_[staleness];
        break;
      }
    }
    // Not under the lock, and before anything has changed: a copy may take long, and may fail for lack of
    // memory.
    copy = versions_.copy_newest();
  }
  try {
    if (copy) {
      optimizer_.target().move_to(*copy);
      versions_.advance_to(applied.version, std::move(*copy));
    } else {
      versions_.advance_in_place(applied.version);
    }
    optimizer_.target().step(gradients);
  } catch (...) {
    applied.error = std::current_exception();
  }
  versions_.load(applied.version);
  return applied.version;
}

}  // namespace weft::dist_optim
