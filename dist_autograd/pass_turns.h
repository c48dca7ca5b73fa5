// PassTurns: when a pass's nodes run on this worker, chosen by a pipeline stage that takes its micro-batches
// in turns (1F1B, zero bubble).
//
//   pass.state()->turns().hold();                       // in the handler of the micro-batch's forward
//   co_await pass.state()->turns().resume();            // its turn: gradients leave for the stage before
//   co_await pass.state()->turns().run_weights();       // later: the gradients of its parameters
//
// Only nodes are held. Messages of the backward are still taken in and acknowledged. On which threads nodes
// run, and with which priority among passes, is the executor's business (PassState::run_on). What is held
// ends with the pass: by release, failure or timeout; futures then fail with its error. A stage that holds a
// pass and never gives it its turn holds up its backward until then.
//
// Owned by the PassState. Thread-safe; futures complete on the pass's serial executor.
#pragma once

#include <weft/rpc/core/future.h>

#include <mutex>
#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT PassTurns {
 public:
  // wake: has the share look at what it may run now; any thread.
  explicit PassTurns(rpc::Callback wake) : wake_(std::move(wake)) {}

  // From now on no node of the pass starts here before its turn. Before the backward, or between two.
  void hold();
  // The turn of the backward's nodes; with BackwardOptions::defer_weights, of its input part. Completes once
  // they have run here. failed_precondition without hold().
  rpc::Future<void> resume();
  // The turn of the weight part, which runs once the input part has. Completes once it has run here; without
  // defer_weights, with resume()'s. failed_precondition without hold().
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
    std::vector<rpc::Promise<void>> waiting;  // for the part to have run
  };
  rpc::Future<void> give(Turn& turn, const char* operation);
  void ran(Turn& turn);

  rpc::Callback wake_;
  mutable std::mutex mutex_;  // guards what follows
  Turn inputs_, weights_;
  std::exception_ptr error_;  // that the pass ended with
};

}  // namespace weft::dist_autograd
