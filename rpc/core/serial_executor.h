// SerialExecutor: runs its jobs one at a time, in the order of posting, on the threads of another executor.
//
// Each object behind an RRef has a SerialExecutor, on which its handlers run. Each pass has one, too. If a
// job starts a task and the task suspends, the next job runs. Thread-safe. Jobs share the executor's state,
// so the executor may be destroyed while jobs are queued. If the other executor has ended and drops jobs,
// this executor also drops its jobs. A SerialExecutor is small, because each object has one: it uses no lock,
// and 48 bytes while idle.
#pragma once

#include <weft/rpc/core/executor.h>

#include <memory>

namespace weft::rpc {

class WEFT_EXPORT SerialExecutor final : public Executor {
 public:
  explicit SerialExecutor(Executor& threads);
  void post(Callback job) override;
  std::shared_ptr<ExceptionSink> exceptions() const override;  // the sink of the other executor

 private:
  struct State;
  class Runner;  // the only job in the other executor
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
