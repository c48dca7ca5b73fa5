// LoopWatch: measures how soon each loop of an agent answers, and the processor time of its thread.
//
// The question is a job that is posted to the loop. It runs after the jobs that are queued, so its delay is
// that of an event that arrives now. A loop with an unanswered question is not asked again. Thread-safe; do
// not call ask() on the agent's loops.
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
    std::chrono::nanoseconds delay{0};  // until the answer; or so far, for an unanswered question
    std::chrono::nanoseconds cpu{0};    // of the thread that last ran it, since its start; 0: it never ran
  };

  // Does not keep the agent.
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
