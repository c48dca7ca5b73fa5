// PassTurns: controls when a pass's nodes run on this worker, for a pipeline stage that orders its
// micro-batches (1F1B, zero bubble).
//
//   pass.state()->turns().hold();                       // in the handler of the micro-batch's forward
//   co_await pass.state()->turns().resume();            // runs the nodes: gradients leave the stage
//   co_await pass.state()->turns().run_weights();       // later: the gradients of its parameters
//
// Only nodes are held: the worker still accepts and acknowledges messages of the backward. The executor
// determines the threads of the nodes and the priority among passes (PassState::run_on). When the pass ends,
// by release, failure or timeout, held nodes are dropped, and the futures fail with the error of the pass. If
// a stage holds a pass and never resumes it, the backward of the pass does not complete until the pass ends.
//
// Owned by the PassState. Thread-safe; futures complete on the pass's serial executor.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT PassTurns {
 public:
  // wake: makes the share check which nodes it may run now. Called on any thread.
  explicit PassTurns(rpc::Callback wake) : wake_(std::move(wake)) {}

  // From now on, no node of the pass starts here before its turn. Call hold() before a backward, not during
  // one.
  void hold();
  // Gives the turn to the nodes of the backward; with BackwardOptions::defer_weights, only to the nodes of
  // the input part. Completes when they have run here. failed_precondition without hold().
  rpc::Future<void> resume();
  // Gives the turn to the nodes of the weight part, which runs after the input part. Completes when the
  // weight part has run here; without defer_weights, together with the future of resume().
  // failed_precondition without hold().
  rpc::Future<void> run_weights();

  // --- For the share, on the serial executor ---
  bool holds_inputs() const;
  bool holds_weights() const;
  bool wants_weights() const;  // run_weights() was called, and the weight part has not run
  void inputs_ran();
  void weights_ran();
  void end(const std::exception_ptr& error);  // any thread; only the first call has an effect

 private:
  // One part of the backward.
  struct BackwardPart {
    bool held = false;
    std::vector<rpc::Promise<void>> waiting;  // completed when the part has run
  };
  rpc::Future<void> give(BackwardPart PassTurns::* part, const char* operation);
  void ran(BackwardPart PassTurns::* part);

  rpc::Callback wake_;
  mutable rpc::Mutex mutex_;
  BackwardPart inputs_ WEFT_GUARDED_BY(mutex_);
  BackwardPart weights_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);  // the error that ended the pass
};

}  // namespace weft::dist_autograd
