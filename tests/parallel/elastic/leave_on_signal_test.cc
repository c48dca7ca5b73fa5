#include <weft/parallel/elastic/leave_on_signal.h>

#include <weft/parallel/elastic/internal/state_access.h>

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace weft::elastic::leave_on_signal_test {
namespace {

bool leaves(State& state) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes{1};
  while (!detail::StateAccess(state).leaving() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  return detail::StateAccess(state).leaving();
}

TEST(LeaveOnSignal, ASignalMakesTheWorkerLeave) {
  State first, second;
  const LeaveOnSignal leave(first, SIGUSR1), also(second, SIGUSR1);
  EXPECT_FALSE(detail::StateAccess(first).leaving());
  ::raise(SIGUSR1);
  EXPECT_TRUE(leaves(first));
  EXPECT_TRUE(leaves(second));
}

}  // namespace
}  // namespace weft::elastic::leave_on_signal_test
