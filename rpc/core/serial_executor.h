// SerialExecutor: runs its jobs one at a time, in the order posted, on the threads of another executor.
//
// It is the turn-taking of an object behind an RRef and of a pass: a job that starts a task which suspends
// lets the next job in. Thread-safe. Jobs keep the executor's state alive, so it may be destroyed while jobs
// are queued. Where the other executor has ended and drops jobs, so does this one.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/fifo.h>

#include <memory>
#include <mutex>

namespace weft::rpc {

class WEFT_EXPORT SerialExecutor final : public Executor {
 public:
  explicit SerialExecutor(Executor& threads) : state_(std::make_shared<State>(threads)) {}
  void post(Job job) override;

 private:
  struct State {
    explicit State(Executor& t) : threads(t) {}
    Executor& threads;
    std::mutex mutex;  // guards jobs, running
    Fifo<Job> jobs;    // one for each object: it takes no memory while it is empty
    bool running = false;
  };
  class Turn;  // the one job of `threads` at a time
  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
