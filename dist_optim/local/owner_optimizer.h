// OwnerOptimizer: the optimizer of one OwnedParameters, with its learning rates and its state.
//
// The first trainer that registers defines the optimizer. A restore replaces it. If no trainer is registered,
// a trainer that registers other options also replaces it. Steps, loads and saves run one at a time.
//
// Owner: OwnedParameters. Thread-safe. Errors: those of StepTarget; `failed_precondition` before the first
// trainer has registered.
#pragma once

#include <weft/dist_optim/local/step_target.h>
#include <weft/rpc/core/mutex.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace weft::dist_optim {

class WEFT_EXPORT OwnerOptimizer {
 public:
  // False before the first trainer has registered.
  bool exists() const;
  // group: the prefix of a ParameterGroup; empty: the parameters in no group. Without a group,
  // set_learning_rate() sets the rates of all parameters.
  double learning_rate(const std::string& group = {}) const;
  void set_learning_rate(double rate, const std::optional<std::string>& group = {});
  // The state in checkpoints.
  OptimizerState state() const;
  void set_state(const OptimizerState& state);
  void check_state(const OptimizerState& state) const;  // fails as set_state() would

 private:
  friend class OwnedParameters;  // steps it, reads its spec, and replaces it

  bool is(const OptimizerSpec& spec) const;  // an optimizer exists, with these options
  OptimizerSpec spec() const;                // without a name if no optimizer exists
  // Lock order: the VersionGate of OwnedParameters, a turn, the mutex of OwnedParameters, mutex_.
  std::unique_lock<std::mutex> turn() const { return std::unique_lock(turn_); }
  // The caller holds the turn while it uses the result. find(): null if no optimizer exists.
  StepTarget* find() const;
  StepTarget& target() const;
  // The caller holds the turn, unless no optimizer exists yet.
  void replace(std::unique_ptr<StepTarget> target);

  // Guards what target_ points at. Not an rpc::Mutex: clang's analysis follows no lock that a function
  // returns.
  mutable std::mutex turn_;
  mutable rpc::Mutex mutex_;
  std::unique_ptr<StepTarget> target_ WEFT_GUARDED_BY(mutex_);  // replaced under turn_ as well
};

}  // namespace weft::dist_optim
