// New values from outside: a loaded state (a step that no trainer made), or a snapshot of this owner or
// another.
#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/error.h>

#include <utility>

namespace weft::dist_optim {

void OwnedParameters::change(const std::function<void()>& body, const OptimizerState* optimizer) {
  std::exception_ptr failed;
  gate_.exclusive([&]() -> std::optional<Version> {
    streams_.follow();
    const auto turn = optimizer_.turn();
    if (optimizer != nullptr) optimizer_.target().set_state(*optimizer);
    StepTarget* const target = optimizer_.find();
    std::optional<ParameterVersions::Tensors> copy;
    Version version = 0;
    for (;;) {
      {
        rpc::MutexLock lock(mutex_);
        const bool hogwild = mode_ && mode_->kind == StepMode::Kind::hogwild;
        if (hogwild || copy || !ledger_.read_by_others({})) {
          ledger_.step({});
          version = ledger_.newest();
          break;
        }
      }
      copy = versions_.copy_newest();
    }
    try {
      if (copy) {
        if (target != nullptr) target->move_to(*copy);
        versions_.advance_to(version, std::move(*copy));
      } else {
        versions_.advance_in_place(version);
      }
      versions_.load(version);
      body();
    } catch (...) {
      failed = std::current_exception();
    }
    streams_.note();
    return version;
  });
  After after;
  {
    rpc::MutexLock lock(mutex_);
    fail_outdated(after);  // steps that wait for their round, of passes that read the previous version
    tidy(after);
  }
  finish(after);
  if (failed != nullptr) std::rethrow_exception(failed);
}

void OwnedParameters::begin_restore(const OptimizerSpec& spec) {
  rpc::MutexLock lock(mutex_);
  const auto refuse = [](rpc::ErrorKind kind, const std::string& why) {
    throw rpc::Error(kind, "restore: " + why);
  };
  if (!has_tensors_)
    refuse(rpc::ErrorKind::invalid_argument,
           "the rows of an embedding have a state of their own: call the ShardedEmbedding's load()");
  if (claimed_)
    refuse(rpc::ErrorKind::failed_precondition, "trainer " + *claimed_ + " has claimed the parameters");
  if (!handles_.empty() && !optimizer_.is(spec))
    refuse(rpc::ErrorKind::invalid_argument, "the snapshot's optimizer is " + to_string(spec) +
                                                 ", but attached trainers step with " +
                                                 to_string(optimizer_.spec()));
  if (in_flight()) refuse(rpc::ErrorKind::failed_precondition, "a step is in flight; await it first");
  if (!ledger_.pause())
    refuse(rpc::ErrorKind::failed_precondition,
           std::to_string(ledger_.open()) +
               " passes over the parameters are open, or another restore is in flight; end them first");
}

void OwnedParameters::restore(const OwnerState& state, const std::function<void()>& write) {
  begin_restore(state.spec);
  std::exception_ptr failed;
  try {
    gate_.exclusive([&]() -> std::optional<Version> {
      streams_.follow();
      // A new optimizer, so that a refused state changes nothing.
      std::unique_ptr<StepTarget> fresh;
      if (!state.spec.name.empty()) {
        fresh = make_target_(state.spec);
        fresh->move_to(*versions_.newest());
        fresh->set_state(state.optimizer);
      }
      {
        rpc::MutexLock lock(mutex_);
        versions_.load(ledger_.newest());
      }
      write();
      streams_.note();
      const auto turn = optimizer_.turn();
      rpc::MutexLock lock(mutex_);
      optimizer_.replace(std::move(fresh));
      for (const Version version : ledger_.take_dropped()) versions_.drop(version);
      ledger_.renumber(state.version);
      versions_.advance_in_place(state.version);
      return state.version;
    });
  } catch (...) {
    failed = std::current_exception();
  }
  After after;
  {
    rpc::MutexLock lock(mutex_);
    ledger_.resume();
    tidy(after);
  }
  finish(after);
  if (failed != nullptr) std::rethrow_exception(failed);
}

}  // namespace weft::dist_optim
