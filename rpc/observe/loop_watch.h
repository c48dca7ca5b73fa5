// LoopWatch: how soon each loop of an agent answers, and how much processor time its thread has used.
//
// A loop is asked by a job that is posted to it: it runs behind what waits there already, so its delay is
// that of an arrival at this moment. A loop that has not answered yet is not asked again. Thread-safe; ask()
// is not called on the agent's loops.
#pragma once

#include <weft/rpc/agent/agent_core.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::observe {

class WEFT_EXPORT LoopWatch {
 public:
  // The answer of one loop.
  struct Loop {
    bool answered = false;              // within the timeout
    std::chrono::nanoseconds delay{0};  // until it answered, or of the question that it has not answered yet
    std::chrono::nanoseconds cpu{0};    // of the thread that ran it last, since that began; 0: none has yet
  };

  // Does not keep the agent.
  explicit LoopWatch(const std::shared_ptr<rpc::AgentCore>& core) : core_(core) {}

  // One entry for each of the agent's loops; none where the agent has ended.
  std::vector<Loop> ask(std::chrono::nanoseconds timeout);

 private:
  struct Question;

  const std::weak_ptr<rpc::AgentCore> core_;
  std::mutex mutex_;  // guards questions_
  std::vector<std::shared_ptr<Question>> questions_;
};

}  // namespace weft::observe
