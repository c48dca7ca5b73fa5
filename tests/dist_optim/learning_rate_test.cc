// Compares schedules with PyTorch's documented formulas, in the recursive form if there is one.
#include <weft/dist_optim/learning_rate.h>
#include <weft/rpc/core/error.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace weft::dist_optim::learning_rate_test {
namespace {

constexpr double pi = std::numbers::pi;

TEST(LearningRate, LinearAndWarmUp) {
  const auto down = linear(2, 4, 1, 0.5);
  for (auto [step, rate] : std::vector<std::pair<int, double>>{{0, 2}, {1, 1.75}, {2, 1.5}, {4, 1}, {9, 1}})
    EXPECT_DOUBLE_EQ(down(step), rate) << step;
  const auto up = linear_warmup(0.8, 4);
  for (auto [step, rate] :
       std::vector<std::pair<int, double>>{{0, 0.2}, {1, 0.4}, {2, 0.6}, {3, 0.8}, {7, 0.8}})
    EXPECT_DOUBLE_EQ(up(step), rate) << step;
  EXPECT_EQ(linear_warmup(0.8, 1)(0), 0.8);
}

// PyTorch's chainable forms compute each rate from the previous one.
TEST(LearningRate, DecaysEqualTheirRecursions) {
  const auto by_gamma = exponential(0.5, 0.9), stepped = step_decay(0.5, 3, 0.1),
             at_milestones = multi_step(0.5, {2, 5, 5}, 0.1), by_power = polynomial(0.5, 6, 2);
  double a = 0.5, b = 0.5, c = 0.5, d = 0.5;
  for (int t = 0; t < 12; ++t) {
    if (t > 0) {
      a *= 0.9;
      if (t % 3 == 0) b *= 0.1;
      if (t == 2) c *= 0.1;
      if (t == 5) c *= 0.01;  // the same milestone twice
      d *= t <= 6 ? std::pow((1 - t / 6.0) / (1 - (t - 1) / 6.0), 2) : 1;
    }
    EXPECT_NEAR(by_gamma(t), a, 1e-15) << t;
    EXPECT_NEAR(stepped(t), b, 1e-15) << t;
    EXPECT_NEAR(at_milestones(t), c, 1e-15) << t;
    EXPECT_NEAR(by_power(t), d, 1e-15) << t;
  }
}

// eta_{t+1} = eta_min + (eta_t - eta_min) (1 + cos(pi (t+1) / T)) / (1 + cos(pi t / T)).
TEST(LearningRate, CosineEqualsItsRecursionAndStaysAtTheMinimum) {
  const auto rate = cosine(1, 10, 0.1);
  double eta = 1;
  for (int t = 0; t < 10; ++t) {
    EXPECT_NEAR(rate(t), eta, 1e-12) << t;
    eta = 0.1 + (eta - 0.1) * (1 + std::cos(pi * (t + 1) / 10)) / (1 + std::cos(pi * t / 10));
  }
  EXPECT_NEAR(rate(10), 0.1, 1e-15);
  EXPECT_NEAR(rate(11), 0.1, 1e-15);
}

TEST(LearningRate, CosineRestartsAfterEverLongerRuns) {
  const auto rate = cosine_restarts(1, 2, 3, 0.2);
  std::uint64_t t = 0;
  for (int length : {2, 6, 18})
    for (int i = 0; i < length; ++i, ++t)
      EXPECT_NEAR(rate(t), 0.2 + 0.8 * (1 + std::cos(pi * i / length)) / 2, 1e-12) << t;
  const auto even = cosine_restarts(1, 4);
  EXPECT_EQ(even(4'000'000'000'000), 1);
  EXPECT_NEAR(even(4'000'000'000'002), 0.5, 1e-12);
}

TEST(LearningRate, OneCycle) {
  const double low = 1.0 / 25, end = low / 1e4;
  const auto cosines = one_cycle({.maximum = 1, .steps = 20});  // the maximum is at step 0.3·20 − 1 = 5
  for (int t = 0; t < 20; ++t) {
    const double want = t <= 5 ? 1 + (low - 1) / 2 * (1 + std::cos(pi * t / 5))
                               : end + (1 - end) / 2 * (1 + std::cos(pi * (t - 5) / 14));
    EXPECT_NEAR(cosines(t), want, 1e-12) << t;
  }
  EXPECT_NEAR(cosines(1000), end, 1e-12);
  const auto lines = one_cycle({.maximum = 1, .steps = 20, .linear = true, .three_phases = true});
  for (int t = 0; t < 20; ++t) {  // up to 5, down to 10, out to 19
    const double want = t <= 5    ? low + (1 - low) * t / 5
                        : t <= 10 ? 1 + (low - 1) * (t - 5) / 5
                                  : low + (end - low) * (t - 10) / 9;
    EXPECT_NEAR(lines(t), want, 1e-12) << t;
  }
}

TEST(LearningRate, SequencesAndProducts) {
  const auto whole = sequential({linear_warmup(1, 4), cosine(1, 6), constant(0.5)}, {4, 10});
  EXPECT_DOUBLE_EQ(whole(3), 1);
  EXPECT_DOUBLE_EQ(whole(4), 1);  // the cosine's own step 0
  EXPECT_NEAR(whole(7), 0.5, 1e-12);
  EXPECT_EQ(whole(10), 0.5);
  const auto product = chained(2, {exponential(1, 0.5), step_decay(1, 2, 0.1)});
  EXPECT_DOUBLE_EQ(product(3), 2 * 0.125 * 0.1);
}

TEST(LearningRate, InvalidNumbersAreRefused) {
  EXPECT_THROW(constant(-1), rpc::Error);
  EXPECT_THROW(constant(std::nan("")), rpc::Error);
  EXPECT_THROW(cosine(1, 0), rpc::Error);
  EXPECT_THROW(linear_warmup(1, 0), rpc::Error);
  EXPECT_THROW(multi_step(1, {3, 2}), rpc::Error);
  EXPECT_THROW(sequential({constant(1)}, {3}), rpc::Error);
  EXPECT_THROW(cosine_restarts(1, 3, 0), rpc::Error);
  EXPECT_THROW(one_cycle({.maximum = 1, .steps = 10, .rising = 2}), rpc::Error);
}

}  // namespace
}  // namespace weft::dist_optim::learning_rate_test
