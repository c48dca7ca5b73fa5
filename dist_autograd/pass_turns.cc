#include <weft/dist_autograd/pass_turns.h>

#include <string>

namespace weft::dist_autograd {

void PassTurns::hold() {
  rpc::MutexLock lock(mutex_);
  inputs_.held = weights_.held = true;
}

rpc::Future<void> PassTurns::resume() { return give(&PassTurns::inputs_, "resume"); }

rpc::Future<void> PassTurns::run_weights() { return give(&PassTurns::weights_, "run_weights"); }

rpc::Future<void> PassTurns::give(BackwardPart PassTurns::* part, const char* operation) {
  rpc::Future<void> future;
  {
    rpc::MutexLock lock(mutex_);
    if (error_ != nullptr) return rpc::Future<void>::made(error_);
    if (!std::exchange((this->*part).held, false))
      return rpc::Future<void>::made(std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::failed_precondition,
                     std::string(operation) + ": the pass is not held: call hold() before each turn")));
    future = (this->*part).waiting.emplace_back().future();
  }
  wake_();
  return future;
}

bool PassTurns::holds_inputs() const {
  rpc::MutexLock lock(mutex_);
  return inputs_.held;
}

bool PassTurns::holds_weights() const {
  rpc::MutexLock lock(mutex_);
  return weights_.held;
}

bool PassTurns::wants_weights() const {
  rpc::MutexLock lock(mutex_);
  return !weights_.waiting.empty();
}

void PassTurns::inputs_ran() { ran(&PassTurns::inputs_); }
void PassTurns::weights_ran() { ran(&PassTurns::weights_); }

void PassTurns::ran(BackwardPart PassTurns::* part) {
  std::vector<rpc::Promise<void>> waiting;
  {
    rpc::MutexLock lock(mutex_);
    waiting.swap((this->*part).waiting);
  }
  for (rpc::Promise<void>& promise : waiting) promise.complete({});
}

void PassTurns::end(const std::exception_ptr& error) {
  std::vector<rpc::Promise<void>> waiting;
  {
    rpc::MutexLock lock(mutex_);
    if (error_ != nullptr) return;
    error_ = error;
    for (BackwardPart* part : {&inputs_, &weights_}) {
      std::move(part->waiting.begin(), part->waiting.end(), std::back_inserter(waiting));
      part->waiting.clear();
    }
  }
  for (rpc::Promise<void>& promise : waiting) promise.fail(error);
}

}  // namespace weft::dist_autograd
