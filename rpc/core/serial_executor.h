// SerialExecutor: runs its jobs one at a time, in the order of posting, on the threads of another executor.
//
// It gives turns to the handlers of an object behind an RRef, and of a pass. If a job starts a task and the
// task suspends, the next job runs. Thread-safe. Jobs keep the executor's state, so it may be destroyed while
// jobs are queued. If the other executor has ended and drops jobs, this one drops them, too. It uses no lock,
// and 48 bytes while idle, because each object has one.
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
  class Turn;  // the one job in the other executor
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
