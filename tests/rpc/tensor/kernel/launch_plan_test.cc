#include <weft/rpc/tensor/kernel/launch_plan.h>

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/support/errors.h"

namespace weft::tensor::kernel::launch_plan_test {
namespace {

using rpc::ErrorKind;
using test::kind_of;

TEST(LaunchPlan, CutsPiecesIntoBlocks) {
  const std::vector<std::size_t> counts{5, 0, 4, 1, 9};
  const auto launches = plan_launches(counts, {.pieces = 3, .per_block = 4});
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].pieces, (std::vector<std::size_t>{0, 2, 3}));
  EXPECT_EQ(launches[0].first_block, (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(launches[0].blocks, 4u);
  EXPECT_EQ(launches[1].pieces, (std::vector<std::size_t>{4}));
  EXPECT_EQ(launches[1].blocks, 3u);
}

TEST(LaunchPlan, NothingIsNoLaunch) {
  EXPECT_TRUE(plan_launches({}, {.pieces = 1, .per_block = 1}).empty());
  EXPECT_TRUE(plan_launches(std::vector<std::size_t>{0, 0}, {.pieces = 1, .per_block = 1}).empty());
}

TEST(LaunchPlan, HundredsOfPiecesAreFewLaunches) {
  EXPECT_EQ(plan_launches(std::vector<std::size_t>(600, 1000), {.pieces = 128, .per_block = 4096}).size(),
            5u);
}

TEST(LaunchPlan, RefusesWhatNoLaunchHasRoomFor) {
  const std::vector<std::size_t> counts{2, 12};
  EXPECT_EQ(kind_of([&] { return plan_launches(counts, {.pieces = 2, .per_block = 4, .blocks = 2}); }),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { return plan_launches(counts, {.pieces = 0, .per_block = 4}); }),
            ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { return plan_launches(counts, {.pieces = 1, .per_block = 0}); }),
            ErrorKind::invalid_argument);
}

// What the blocks of all launches do together, as a kernel finds it out.
TEST(LaunchPlan, EveryElementIsInOneBlock) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::size_t> counts(1 + random() % 40);
    for (auto& count : counts) count = random() % 3 == 0 ? 0 : random() % 100;
    const LaunchLimits limits{.pieces = 1 + random() % 7, .per_block = 1 + random() % 16, .blocks = 110};
    std::map<std::pair<std::size_t, std::size_t>, int> seen;
    std::size_t all = 0;
    for (const std::size_t count : counts) all += count;
    for (const Launch& launch : plan_launches(counts, limits)) {
      EXPECT_LE(launch.pieces.size(), limits.pieces);
      EXPECT_LE(launch.blocks, limits.blocks);
      for (std::uint32_t block = 0; block < launch.blocks; ++block) {
        const auto slot = slot_of(launch.first_block.data(), launch.pieces.size(), block);
        const std::size_t piece = launch.pieces[slot];
        const std::size_t begin = (block - launch.first_block[slot]) * limits.per_block;
        EXPECT_LT(begin, counts[piece]) << "a block without elements";
        for (std::size_t i = begin; i < counts[piece] && i < begin + limits.per_block; ++i)
          ++seen[{piece, i}];
      }
    }
    EXPECT_EQ(seen.size(), all);
    for (const auto& [element, times] : seen) EXPECT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace weft::tensor::kernel::launch_plan_test
