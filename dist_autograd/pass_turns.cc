#include <weft/dist_autograd/pass_turns.h>

#include <string>

namespace weft::dist_autograd {

void PassTurns::hold() {
  std::lock_guard lock(mutex_);
  inputs_.held = weights_.held = true;
}

rpc::Future<void> PassTurns::resume() { return give(inputs_, "resume"); }

rpc::Future<void> PassTurns::run_weights() { return give(weights_, "run_weights"); }

rpc::Future<void> PassTurns::give(Turn& turn, const char* operation) {
  rpc::Future<void> future;
  {
    std::lock_guard lock(mutex_);
    if (error_ != nullptr) return rpc::Future<void>::made(error_);
    if (!std::exchange(turn.held, false))
      return rpc::Future<void>::made(std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::failed_precondition,
                     std::string(operation) + ": the pass is not held: call hold() before each turn")));
    future = turn.waiting.emplace_back().future();
  }
  wake_();
  return future;
}

bool PassTurns::holds_inputs() const {
  std::lock_guard lock(mutex_);
  return inputs_.held;
}

bool PassTurns::holds_weights() const {
  std::lock_guard lock(mutex_);
  return weights_.held;
}

bool PassTurns::wants_weights() const {
  std::lock_guard lock(mutex_);
  return !weights_.waiting.empty();
}

void PassTurns::inputs_ran() { ran(inputs_); }
void PassTurns::weights_ran() { ran(weights_); }

void PassTurns::ran(Turn& turn) {
  std::vector<rpc::Promise<void>> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(turn.waiting);
  }
  for (rpc::Promise<void>& promise : waiting) promise.complete({});
}

void PassTurns::end(const std::exception_ptr& error) {
  std::vector<rpc::Promise<void>> waiting;
  {
    std::lock_guard lock(mutex_);
    if (error_ != nullptr) return;
    error_ = error;
    for (Turn* turn : {&inputs_, &weights_}) {
      std::move(turn->waiting.begin(), turn->waiting.end(), std::back_inserter(waiting));
      turn->waiting.clear();
    }
  }
  for (rpc::Promise<void>& promise : waiting) promise.fail(error);
}

}  // namespace weft::dist_autograd
