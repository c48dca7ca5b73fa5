#include <weft/parallel/elastic/learning_rate_scale.h>

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/errors.h"

namespace weft::elastic {
namespace learning_rate_scale_test {

using Factors = std::vector<double>;

Factors next(LearningRateScale& scale, int workers, int steps) {
  Factors factors;
  for (int step = 0; step < steps; ++step) factors.push_back(scale.next(workers));
  return factors;
}

TEST(LearningRateScale, FollowsTheNumberOfWorkers) {
  LearningRateScale scale{.workers = 4};
  EXPECT_EQ(next(scale, 4, 2), (Factors{1, 1}));
  EXPECT_EQ(next(scale, 6, 2), (Factors{1.5, 1.5}));
  EXPECT_EQ(next(scale, 2, 2), (Factors{0.5, 0.5}));
}

TEST(LearningRateScale, WarmsUpAfterWorkersHaveJoined) {
  LearningRateScale scale{.workers = 4, .warm_up = 4};
  EXPECT_EQ(next(scale, 4, 2), (Factors{1, 1}));
  EXPECT_EQ(next(scale, 6, 6), (Factors{1, 1.125, 1.25, 1.375, 1.5, 1.5}));
  EXPECT_EQ(next(scale, 4, 2), (Factors{1, 1})) << "a lower rate holds at once";
}

// The warm-up starts at the factor that was reached. The new factor is higher in one case, and lower but
// still above it in the other.
TEST(LearningRateScale, AChangeWithinAWarmUpBeginsAnotherOne) {
  LearningRateScale scale{.workers = 1, .warm_up = 4};
  EXPECT_EQ(next(scale, 1, 1), (Factors{1}));
  EXPECT_EQ(next(scale, 5, 3), (Factors{1, 2, 3}));
  EXPECT_EQ(next(scale, 7, 2), (Factors{3, 4}));
  EXPECT_EQ(next(scale, 6, 6), (Factors{4, 4.5, 5, 5.5, 6, 6}));
  EXPECT_EQ(next(scale, 2, 1), (Factors{2}));
}

// As in Goyal et al., the rate is that of one worker at first, and that of all workers after the warm-up.
TEST(LearningRateScale, WarmsUpAtTheBeginningOfTraining) {
  LearningRateScale scale{.warm_up = 2};
  EXPECT_EQ(next(scale, 8, 3), (Factors{1, 4.5, 8}));
  LearningRateScale fewer{.workers = 4, .warm_up = 2};
  EXPECT_EQ(next(fewer, 2, 2), (Factors{0.5, 0.5}));
}

TEST(LearningRateScale, RefusesNumbersBelowOne) {
  LearningRateScale scale, none{.workers = 0};
  EXPECT_EQ(test::kind_of([&] { scale.next(0); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([&] { none.next(1); }), rpc::ErrorKind::invalid_argument);
}

}  // namespace learning_rate_scale_test
}  // namespace weft::elastic
