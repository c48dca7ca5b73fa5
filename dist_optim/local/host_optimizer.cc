#include <weft/dist_optim/local/host_optimizer.h>

#include <utility>

namespace weft::dist_optim {

bool HostOptimizer::exists() const { return find() != nullptr; }

double HostOptimizer::learning_rate(const std::string& group) const {
  const auto own = turn();
  return target().learning_rate(group);
}

void HostOptimizer::set_learning_rate(double rate, const std::optional<std::string>& group) {
  const auto own = turn();
  target().set_learning_rate(rate, group);
}

OptimizerState HostOptimizer::state() const {
  const auto own = turn();
  return target().state();
}

void HostOptimizer::set_state(const OptimizerState& state) {
  const auto own = turn();
  target().set_state(state);
}

void HostOptimizer::check_state(const OptimizerState& state) const {
  const auto own = turn();
  target().check_state(state);
}

bool HostOptimizer::is(const OptimizerSpec& spec) const {
  rpc::MutexLock lock(mutex_);
  return target_ != nullptr && target_->spec() == spec;
}

OptimizerSpec HostOptimizer::spec() const {
  rpc::MutexLock lock(mutex_);
  return target_ != nullptr ? target_->spec() : OptimizerSpec();
}

StepTarget* HostOptimizer::find() const {
  rpc::MutexLock lock(mutex_);
  return target_.get();
}

StepTarget& HostOptimizer::target() const {
  StepTarget* const known = find();
  if (known == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "no trainer has registered an optimizer on these parameters");
  return *known;
}

void HostOptimizer::replace(std::unique_ptr<StepTarget> target) {
  rpc::MutexLock lock(mutex_);
  target_.swap(target);
}

}  // namespace weft::dist_optim
