#include "bench/harness/statistics.h"

#include <gtest/gtest.h>

namespace weft::bench::statistics_test {
namespace {

TEST(Statistics, QuantilesAreSamplesOfNearestRank) {
  EXPECT_EQ(quantile({5}, 0.99), 5);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0), 1);
}

TEST(Statistics, MedianOfAnEvenNumberLiesBetween) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

}  // namespace
}  // namespace weft::bench::statistics_test
