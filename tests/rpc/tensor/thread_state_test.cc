// LibTorch's thread-local state belongs to a call, not to the thread that happens to run it.
#include <weft/rpc/tensor/thread_state.h>

#include <weft/rpc/tensor/layers.h>

#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::tensor::thread_state_test {
namespace {

using test::got;

std::shared_ptr<test::Event> gate;
rpc::Agent* serving = nullptr;

bool grad_mode() { return at::GradMode::is_enabled(); }
void leave_it_on() { at::GradMode::set_enabled(true); }
void wait() { gate->wait(); }
using GradMode = rpc::Function<"grad_mode", &grad_mode>;
using LeaveItOn = rpc::Function<"leave_it_on", &leave_it_on>;
using Wait = rpc::Function<"wait", &wait>;

// A guard whose scope contains a suspension, as a user writes it.
rpc::Task<bool> guarded(std::string peer) {
  at::AutoGradMode on(true);
  co_await serving->peer(peer).call<Wait>();
  co_return at::GradMode::is_enabled();
}
using Guarded = rpc::Function<"guarded", &guarded>;

class ThreadStateTest : public testing::Test {
 protected:
  ThreadStateTest()
      : cluster_({.layers = layers()}, {"here", "there"}), peer_(cluster_.peer("here", "there")) {
    gate = std::make_shared<test::Event>();
    serving = &cluster_["there"];
    for (const auto* name : {"here", "there"}) {
      cluster_[name].serve<GradMode>();
      cluster_[name].serve<LeaveItOn>();
      cluster_[name].serve<Wait>();
      cluster_[name].serve<Guarded>();
    }
  }
  ~ThreadStateTest() override { gate->set(); }

  test::Cluster cluster_;
  rpc::Peer peer_;
};

TEST_F(ThreadStateTest, WithoutAPassHandlersRunUnderNoGrad) {
  at::AutoGradMode on(true);
  EXPECT_FALSE(got(peer_.call<GradMode>()));
}

TEST_F(ThreadStateTest, StateThatAHandlerSetsDoesNotLeakToOtherCalls) {
  for (int i = 0; i < 8; ++i) got(peer_.call<LeaveItOn>());
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(got(peer_.call<GradMode>()));
}

TEST_F(ThreadStateTest, AGuardOverASuspensionHoldsForItsTaskAlone) {
  std::vector<rpc::Future<bool>> guards;
  for (int i = 0; i < 2; ++i) guards.push_back(peer_.call<Guarded>("here"));
  // Both threads of that agent are free again while the tasks wait for `here`.
  for (int i = 0; i < 16; ++i) EXPECT_FALSE(got(peer_.call<GradMode>()));
  gate->set();
  for (auto& guard : guards) EXPECT_TRUE(got(std::move(guard)));
  for (int i = 0; i < 16; ++i) EXPECT_FALSE(got(peer_.call<GradMode>()));
}

TEST_F(ThreadStateTest, StateMovesBetweenThreads) {
  const auto state = make_thread_state(true);
  at::AutoGradMode off(false);
  state->enter();
  EXPECT_TRUE(at::GradMode::is_enabled());
  at::GradMode::set_enabled(false);
  state->leave();
  EXPECT_FALSE(at::GradMode::is_enabled());
  std::thread([&] {
    ASSERT_TRUE(at::GradMode::is_enabled()) << "as a new thread has it";
    state->enter();
    EXPECT_FALSE(at::GradMode::is_enabled()) << "as it was left";
    state->leave();
    EXPECT_TRUE(at::GradMode::is_enabled());
  }).join();
}

}  // namespace
}  // namespace weft::tensor::thread_state_test
