// PassTurns: controls when a pass's nodes run on this worker, for a pipeline stage that orders its
// micro-batches (1F1B, zero bubble).
//
//   pass.state()->turns().hold();                       // in the handler of the micro-batch's forward
//   co_await pass.state()->turns().resume();            // its turn: gradients leave for the stage before
//   co_await pass.state()->turns().run_weights();       // later: the gradients of its parameters
//
// Only nodes are held. Messages of the backward are still accepted and acknowledged. The executor determines
// the threads of the nodes and the priority among passes (PassState::run_on). Held nodes are dropped when the
// pass ends, by release, failure or timeout; futures then fail with its error. If a stage holds a pass and
// never resumes it, its backward does not complete until then.
//
// Owned by the PassState. Thread-safe; futures complete on the pass's serial executor.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT PassTurns {
 public:
  // wake: makes the share check which nodes it may run now; any thread.
  explicit PassTurns(rpc::Callback wake) : wake_(std::move(wake)) {}

  // From now on, no node of the pass starts here before its turn. Call it before the backward, or between
  // two.
  void hold();
  // The turn of the backward's nodes; with BackwardOptions::defer_weights, of its input part. Completes once
  // they have run here. failed_precondition without hold().
  rpc::Future<void> resume();
  // The turn of the weight part, which runs after the input part. Completes once it has run here; without
  // defer_weights, together with resume()'s. failed_precondition without hold().
  rpc::Future<void> run_weights();

  // --- For the share, on the serial executor ---
  bool holds_inputs() const;
  bool holds_weights() const;
  bool wants_weights() const;  // run_weights() waits
  void inputs_ran();
  void weights_ran();
  void end(const std::exception_ptr& error);  // any thread; the first one counts

 private:
  // The turn of one part.
  struct Turn {
    bool held = false;
    std::vector<rpc::Promise<void>> waiting;  // until the part has run
  };
  rpc::Future<void> give(Turn PassTurns::* turn, const char* operation);
  void ran(Turn PassTurns::* turn);

  rpc::Callback wake_;
  mutable rpc::Mutex mutex_;
  Turn inputs_ WEFT_GUARDED_BY(mutex_);
  Turn weights_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);  // the error that ended the pass
};

}  // namespace weft::dist_autograd
