// LoopWatch: measures for each loop of an agent the delay until it answers, and the processor time of its
// thread.
//
// ask() posts a job (the question) to each loop. The job runs after the jobs that are queued, so its delay is
// that of an event that arrives at the same time. A loop with an unanswered question receives no second
// question. Thread-safe; do not call ask() on the agent's loops.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <chrono>
#include <memory>
#include <vector>

namespace weft::observe {

class WEFT_EXPORT LoopWatch {
 public:
  // The answer of one loop.
  struct Loop {
    bool answered = false;              // within the timeout
    std::chrono::nanoseconds delay{0};  // until the answer; if unanswered, the delay so far
    // The total processor time of the thread that last ran the loop. 0: the loop has never answered.
    std::chrono::nanoseconds cpu{0};
  };

  // The object does not keep the agent alive.
  explicit LoopWatch(const std::shared_ptr<rpc::AgentCore>& core) : core_(core) {}

  // One entry for each of the agent's loops; empty if the agent has ended.
  std::vector<Loop> ask(std::chrono::nanoseconds timeout);

 private:
  struct Question;

  const std::weak_ptr<rpc::AgentCore> core_;
  rpc::Mutex mutex_;
  std::vector<std::shared_ptr<Question>> questions_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::observe
