#include <weft/parallel/collectives/nccl/internal/launch_order.h>

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/errors.h"

namespace weft::collectives::nccl::testing {
namespace launch_order_test {

using namespace std::chrono_literals;
using rpc::Clock;

const auto for_ever = Clock::time_point::max();

TEST(LaunchOrder, TurnsFollowTheOrderOfTheirReservation) {
  const auto order = std::make_shared<LaunchOrder>();
  std::vector<LaunchTurn> turns;
  for (int i = 0; i < 8; ++i) turns.push_back(order->reserve());
  std::vector<int> launched;
  std::vector<std::thread> threads;
  for (int i = 7; i >= 0; --i)
    threads.emplace_back([&, i, turn = std::move(turns[static_cast<std::size_t>(i)])]() mutable {
      turn.wait(for_ever);
      launched.push_back(i);  // only the thread with the turn accesses it
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(launched, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(LaunchOrder, AnUnusedTurnIsSkipped) {
  const auto order = std::make_shared<LaunchOrder>();
  LaunchTurn first = order->reserve(), second = order->reserve(), third = order->reserve();
  second.end();
  EXPECT_FALSE(third.is_mine());
  first = LaunchTurn();
  EXPECT_TRUE(third.is_mine());
  third.wait(for_ever);
}

TEST(LaunchOrder, WaitingForATurnTimesOut) {
  const auto order = std::make_shared<LaunchOrder>();
  const LaunchTurn first = order->reserve();
  LaunchTurn second = order->reserve();
  EXPECT_EQ(test::kind_of([&] {
              second.wait(Clock::now() + 1ms);
              return 0;
            }),
            rpc::ErrorKind::deadline_exceeded);
}

}  // namespace launch_order_test
}  // namespace weft::collectives::nccl::testing
