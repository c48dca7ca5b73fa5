#include <weft/parallel/collectives/internal/shm/lockstep.h>

#include <gtest/gtest.h>

#include <thread>

namespace weft::collectives::testing {
namespace lockstep_test {

class Ranks : public ::testing::TestWithParam<bool> {  // crowded
 protected:
  explicit Ranks(int ranks = 4) : controls(static_cast<std::size_t>(ranks)) {
    std::vector<StepControl*> all;
    for (StepControl& control : controls) all.push_back(&control);
    for (int rank = 0; rank < ranks; ++rank)
      steps.push_back(std::make_unique<Lockstep>(all, rank, GetParam()));
  }
  std::vector<StepControl> controls;
  std::vector<std::unique_ptr<Lockstep>> steps;
};
INSTANTIATE_TEST_SUITE_P(Crowded, Ranks, ::testing::Bool());

TEST_P(Ranks, WaitUntilAllHavePublished) {
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(steps[rank]->publish(), 1U);
  EXPECT_FALSE(steps[0]->await_all(1, Lockstep::Patience::brief));
  EXPECT_EQ(steps[3]->publish(), 1U);
  for (const auto& step : steps) EXPECT_TRUE(step->await_all(1, Lockstep::Patience::endless));
  EXPECT_FALSE(steps[2]->await_all(2, Lockstep::Patience::brief));
}

// Each rank counts, and in each step reads the values that all others wrote before it.
TEST_P(Ranks, SeeEarlierWritesOfOtherRanks) {
  constexpr std::uint64_t rounds = 3'000;
  std::vector<std::array<std::uint64_t, 2>> values(4);
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> wrong{0};
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      for (std::uint64_t round = 1; round <= rounds; ++round) {
        values[static_cast<std::size_t>(rank)][round % 2] = round * 10 + static_cast<std::uint64_t>(rank);
        const std::uint64_t step = steps[static_cast<std::size_t>(rank)]->publish();
        if (!steps[static_cast<std::size_t>(rank)]->await_all(step, Lockstep::Patience::endless)) ++wrong;
        for (std::uint64_t other = 0; other < 4; ++other)
          if (values[other][round % 2] != round * 10 + other) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
}

TEST_P(Ranks, CanBeStoppedWhileTheySleep) {
  std::thread waiter([&] { EXPECT_FALSE(steps[1]->await_all(1, Lockstep::Patience::endless)); });
  while (controls[1].awaited.load() == 0) std::this_thread::yield();  // the rank sleeps or is about to sleep
  steps[1]->stop();
  waiter.join();
  EXPECT_FALSE(steps[1]->await_all(1, Lockstep::Patience::endless));
  EXPECT_TRUE(steps[1]->stopped());
}

}  // namespace lockstep_test
}  // namespace weft::collectives::testing
