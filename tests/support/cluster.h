// What tests of agents include: weft::rpc, weft::testing, GoogleTest, errors.h, and the helpers of this file.
#pragma once

#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/cluster.h>

#include <thread>

#include "tests/support/errors.h"

namespace weft::test {

// Polls until the condition holds. If it does not hold in time, the test fails with the text `what`.
template <class Condition>
void eventually(const std::string& what, Condition condition) {
  const auto end = rpc::Clock::now() + too_long / 2;
  while (!condition()) {
    if (rpc::Clock::now() >= end) {
      ADD_FAILURE() << "half a minute has passed, and still not: " << what;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

// Blocks the loop of an agent for the lifetime of this object.
class HeldLoop {
 public:
  explicit HeldLoop(rpc::Agent& agent) {
    agent.core()->pick_loop()->post([state = state_] {
      state->held.set();
      state->released.wait();
    });
    state_->held.wait();
  }
  ~HeldLoop() { release(); }
  void release() { state_->released.set(); }
  HeldLoop(const HeldLoop&) = delete;
  HeldLoop& operator=(const HeldLoop&) = delete;

 private:
  struct State {
    Event held, released;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace weft::test
