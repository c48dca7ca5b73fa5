#include <weft/parallel/partition/balance.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace balance_test {

using Sizes = std::vector<std::size_t>;

std::vector<double> block_sums(std::span<const double> costs, const Sizes& sizes) {
  std::vector<double> sums;
  std::size_t begin = 0;
  for (const std::size_t size : sizes) {
    const auto first = costs.begin() + static_cast<std::ptrdiff_t>(begin);
    sums.push_back(std::accumulate(first, first + static_cast<std::ptrdiff_t>(size), 0.0));
    begin += size;
  }
  return sums;
}

double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

void for_each_partition(std::size_t costs, std::size_t blocks, const std::function<void(const Sizes&)>& visit,
                        Sizes sizes = {}) {
  if (blocks == 1) {
    sizes.push_back(costs);
    return visit(sizes);
  }
  for (std::size_t size = 1; size + blocks - 1 <= costs; ++size) {
    Sizes longer = sizes;
    longer.push_back(size);
    for_each_partition(costs - size, blocks - 1, visit, longer);
  }
}

// Calls check(costs, blocks) for 2,000 sequences: integers and other numbers, with many equal costs and
// zeros.
template <class Check>
void for_each_sequence(Check&& check) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> costs(1 + random() % 9);
    const std::size_t values = 1 + random() % 12;
    for (double& cost : costs) cost = static_cast<double>(random() % values) * (i % 2 == 0 ? 1 : 0.1);
    check(costs, 1 + random() % costs.size());
  }
}

TEST(BlockPartition, BlocksDifferByAtMostTheDifferenceOfTheCosts) {
  for_each_sequence([](const std::vector<double>& costs, std::size_t blocks) {
    const Sizes sizes = block_partition(costs, blocks);
    ASSERT_EQ(sizes.size(), blocks);
    ASSERT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), costs.size());
    ASSERT_GE(*std::min_element(sizes.begin(), sizes.end()), 1U);
    // The costs above the smallest one count, as in torchgpipe.
    const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
    std::vector<double> above = costs;
    for (double& cost : above) cost -= *least;
    const auto sums = block_sums(above, sizes);
    const auto [smallest, biggest] = std::minmax_element(sums.begin(), sums.end());
    ASSERT_LE(*biggest - *smallest, *most - *least + 1e-9);
  });
}

TEST(BlockPartition, EqualsTorchgpipe) {
  const auto solve = [](std::vector<double> costs, std::size_t blocks) {
    return block_partition(costs, blocks);
  };
  EXPECT_EQ(solve({1, 2, 3, 4, 5, 6}, 2), (Sizes{4, 2}));  // from its tests, as is the next one
  EXPECT_EQ(solve({0, 0}, 2), (Sizes{1, 1}));
  // Results of torchgpipe's balance/blockpartition.py for random sequences.
  EXPECT_EQ(solve({16, 38, 35, 9, 24}, 2), (Sizes{2, 3}));
  EXPECT_EQ(solve({39, 31, 41, 38, 5, 39, 1}, 3), (Sizes{2, 2, 3}));
  EXPECT_EQ(solve({31, 17, 36, 15, 13, 46, 31, 35, 36, 31}, 4), (Sizes{3, 3, 2, 2}));
  EXPECT_EQ(solve({26, 41, 10, 15, 41, 10, 34, 25, 48, 1, 43, 50}, 5), (Sizes{2, 3, 2, 2, 3}));
  EXPECT_EQ(solve({31, 39, 47, 25, 46, 28, 26, 47, 37, 29, 9, 24, 7, 3, 9, 32}, 4), (Sizes{3, 3, 3, 7}));
  EXPECT_EQ(solve({3, 3, 1, 1, 3, 3}, 3), (Sizes{2, 3, 1}));  // of equal blocks the last is the largest
  EXPECT_EQ(solve({0.65, 2.9, 1.31, 1.88, 0.9, 1.52, 1.16, 1.05, 1.76, 1.75, 2.71}, 4), (Sizes{2, 3, 4, 2}));
}

TEST(ExactPartition, MinimizesTheLargestBlock) {
  for_each_sequence([](const std::vector<double>& costs, std::size_t blocks) {
    double best = std::numeric_limits<double>::infinity();
    for_each_partition(costs.size(), blocks,
                       [&](const Sizes& sizes) { best = std::min(best, largest(block_sums(costs, sizes))); });
    const Sizes found = exact_partition(costs, blocks);
    ASSERT_EQ(found.size(), blocks);
    ASSERT_GE(*std::min_element(found.begin(), found.end()), 1U);
    ASSERT_NEAR(largest(block_sums(costs, found)), best, 1e-9);
  });
}

TEST(ExactPartition, IsBetterThanBlockPartition) {
  const std::vector<double> costs{4, 4, 1, 4, 4, 7};
  EXPECT_EQ(largest(block_sums(costs, block_partition(costs, 3))), 11);
  EXPECT_EQ(largest(block_sums(costs, exact_partition(costs, 3))), 9);
}

TEST(Balance, RefusesWrongNumbersOfBlocksAndCosts) {
  const auto error_of = [](auto partition, std::vector<double> costs, std::size_t blocks) {
    return test::message_of([&] { return partition(costs, blocks); });
  };
  EXPECT_EQ(error_of(block_partition, {1, 2}, 0), "block_partition: 0 blocks of 2 costs, expected 1 to 2");
  EXPECT_EQ(error_of(block_partition, {1, 2}, 3), "block_partition: 3 blocks of 2 costs, expected 1 to 2");
  EXPECT_EQ(error_of(block_partition, {}, 1), "block_partition: 1 blocks of 0 costs, expected 1 to 0");
  EXPECT_EQ(error_of(exact_partition, {1, 2}, 3), "exact_partition: 3 blocks of 2 costs, expected 1 to 2");
  EXPECT_EQ(error_of(block_partition, {1, -1}, 1),
            "block_partition: a cost is -1.000000, expected a finite number of at least 0");
}

// Stages of a pipeline have layers: an input that a later layer reads is no stage, at any place in the order.
TEST(Balance, PutsInputsIntoTheStageOfTheNextLayer) {
  Profile profile = sequence({{.name = "in", .description = "Input0", .activation_bytes = 8},
                              {.name = "a", .forward_ms = 100, .activation_bytes = 80},
                              {.name = "b", .forward_ms = 10, .activation_bytes = 1},
                              {.name = "c", .forward_ms = 10, .activation_bytes = 1}});
  EXPECT_EQ(balance_exactly(profile, 3).stages[0].layers, (Sizes{0, 1}));
  EXPECT_EQ(balance_by_time(profile, 3).stages[0].layers, (Sizes{0, 1}));
  EXPECT_EQ(balance_by_size(profile, 3).stages[0].layers, (Sizes{0, 1}));
  EXPECT_EQ(test::message_of([&] { balance_exactly(profile, 4); }),
            "exact_partition: 4 blocks of 3 costs, expected 1 to 3");
  profile.layers.insert(profile.layers.begin() + 2, {.name = "mask", .description = "Input1"});
  profile.edges = {{0, 1}, {1, 3}, {2, 4}, {3, 4}};
  const Partition with_mask = balance_exactly(profile, 3);
  EXPECT_EQ(with_mask.stages[0].layers, (Sizes{0, 1}));
  EXPECT_EQ(with_mask.stages[1].layers, (Sizes{2, 3}));
  EXPECT_EQ(with_mask.stages[2].layers, (Sizes{4}));
}

TEST(Balance, OfAProfileByTimeAndBySize) {
  const Profile profile = sequence(
      {{.name = "in", .description = "Input0", .forward_ms = 900, .activation_bytes = 900},
       {.name = "a", .forward_ms = 10, .backward_ms = 20, .activation_bytes = 1},
       {.name = "b", .forward_ms = 10, .backward_ms = 20, .activation_bytes = 1},
       {.name = "c", .forward_ms = 20, .backward_ms = 40, .activation_bytes = 1, .parameter_bytes = 100}});
  const Partition by_time = balance_by_time(profile, 2);
  EXPECT_EQ(by_time.stages[1].layers, (Sizes{2, 3}));
  EXPECT_DOUBLE_EQ(by_time.bottleneck_seconds, 0.09);
  const Partition exact = balance_exactly(profile, 2);
  EXPECT_EQ(exact.stages[1].layers, (Sizes{3}));
  EXPECT_DOUBLE_EQ(exact.bottleneck_seconds, 0.06);
  EXPECT_DOUBLE_EQ(exact.speed_up(), 2);
  std::vector<Layer> layers;
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    layers.push_back({.name = name, .activation_bytes = 10, .parameter_bytes = name[0] < 'e' ? 0.0 : 10.0});
  EXPECT_EQ(balance_by_size(sequence(layers), 2, 0).stages[0].layers, (Sizes{0, 1, 2}));
  EXPECT_EQ(balance_by_size(sequence(layers), 2, 8).stages[0].layers, (Sizes{0, 1, 2, 3, 4}));
}

}  // namespace balance_test
}  // namespace weft::partition::testing
