// SerialExecutor: runs its jobs one at a time, in the order posted, on the threads of another executor.
//
// It is the turn-taking of an object behind an RRef and of a pass: a job that starts a task which suspends
// lets the next job in. Thread-safe. Jobs keep the executor's state alive, so it may be destroyed while jobs
// are queued. Where the other executor has ended and drops jobs, so does this one. It takes no lock, and 48
// bytes while it has nothing to do: there is one for each object.
#pragma once

#include <weft/rpc/core/executor.h>

#include <memory>

namespace weft::rpc {

class WEFT_EXPORT SerialExecutor final : public Executor {
 public:
  explicit SerialExecutor(Executor& threads);
  void post(Callback job) override;
  std::shared_ptr<ExceptionSink> exceptions() const override;  // those of the other executor

 private:
  struct State;
  class Turn;  // the one job of the other executor at a time
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
