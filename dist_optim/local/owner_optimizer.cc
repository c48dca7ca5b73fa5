#include <weft/dist_optim/local/owner_optimizer.h>

#include <utility>

namespace weft::dist_optim {

bool OwnerOptimizer::exists() const { return find() != nullptr; }

double OwnerOptimizer::learning_rate(const std::string& group) const {
  const auto own = turn();
  return target().learning_rate(group);
}

void OwnerOptimizer::set_learning_rate(double rate, const std::optional<std::string>& group) {
  const auto own = turn();
  target().set_learning_rate(rate, group);
}

OptimizerState OwnerOptimizer::state() const {
  const auto own = turn();
  return target().state();
}

void OwnerOptimizer::set_state(const OptimizerState& state) {
  const auto own = turn();
  target().set_state(state);
}

void OwnerOptimizer::check_state(const OptimizerState& state) const {
  const auto own = turn();
  target().check_state(state);
}

bool OwnerOptimizer::is(const OptimizerSpec& spec) const {
  rpc::MutexLock lock(mutex_);
  return target_ != nullptr && target_->spec() == spec;
}

OptimizerSpec OwnerOptimizer::spec() const {
  rpc::MutexLock lock(mutex_);
  return target_ != nullptr ? target_->spec() : OptimizerSpec();
}

StepTarget* OwnerOptimizer::find() const {
  rpc::MutexLock lock(mutex_);
  return target_.get();
}

StepTarget& OwnerOptimizer::target() const {
  StepTarget* const known = find();
  if (known == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "no trainer has registered an optimizer on these parameters");
  return *known;
}

void OwnerOptimizer::replace(std::unique_ptr<StepTarget> target) {
  rpc::MutexLock lock(mutex_);
  target_.swap(target);
}

}  // namespace weft::dist_optim
