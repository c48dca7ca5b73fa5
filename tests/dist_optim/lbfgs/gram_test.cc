// Pairs and products that do not belong to the history. dist_lbfgs_test.cc compares the directions with
// LibTorch.
#include <weft/dist_optim/lbfgs/internal/gram.h>

#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "tests/support/errors.h"

namespace weft::dist_optim::lbfgs_gram_test {
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
void add(Vector& to, const Vector& from, double factor) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * from[i];
}
Vector numbers(double phase) {
  Vector all(7);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::sin(0.7 * static_cast<double>(i) + phase);
  return all;
}
// A pair of positive curvature.
struct Pair {
  explicit Pair(int i) : s(numbers(i)), y(numbers(i)) {
    for (std::size_t j = 0; j < y.size(); ++j) y[j] *= 1 + 0.3 * std::cos(i + 2. * static_cast<double>(j));
  }
  Vector s, y;
};

LbfgsProducts products(const std::deque<Pair>& history, const Pair* fresh, const Vector& g) {
  LbfgsProducts all;
  all.g_g = dot(g, g);
  std::vector<const Pair*> pairs;
  for (const Pair& pair : history) pairs.push_back(&pair);
  if (fresh != nullptr) pairs.push_back(fresh);
  for (const Pair* pair : pairs) {
    all.s_g.push_back(dot(pair->s, g));
    all.y_g.push_back(dot(pair->y, g));
    if (fresh == nullptr) continue;
    all.s_y.push_back(dot(fresh->s, pair->y));
    all.y_y.push_back(dot(fresh->y, pair->y));
    if (pair != fresh) all.y_s.push_back(dot(fresh->y, pair->s));
  }
  return all;
}

// Nocedal and Wright, algorithm 7.4, for -H g.
Vector two_loops(const std::deque<Pair>& history, const Vector& g) {
  Vector q(g.size()), alpha(history.size());
  add(q, g, -1);
  for (std::size_t i = history.size(); i-- > 0;) {
    alpha[i] = dot(history[i].s, q) / dot(history[i].s, history[i].y);
    add(q, history[i].y, -alpha[i]);
  }
  if (!history.empty())
    for (double& x : q)
      x *= dot(history.back().s, history.back().y) / dot(history.back().y, history.back().y);
  for (std::size_t i = 0; i < history.size(); ++i) {
    const double beta = dot(history[i].y, q) / dot(history[i].s, history[i].y);
    add(q, history[i].s, alpha[i] - beta);
  }
  return q;
}

Vector combined(const LbfgsDirection& direction, const std::deque<Pair>& history, const Vector& g) {
  Vector d(g.size());
  add(d, g, -direction.scale);
  for (std::size_t i = 0; i < history.size(); ++i) {
    add(d, history[i].y, -direction.scale * direction.y_weights.at(i));
    add(d, history[i].s, direction.s_weights.at(i));
  }
  return d;
}

void expect_near(const Vector& got, const Vector& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << i;
}

TEST(LbfgsGram, APairWithoutCurvatureIsNotAdded) {
  LbfgsGram gram(3);
  std::deque<Pair> history;
  gram.update(products(history, nullptr, numbers(0)));
  const Pair first(1);
  EXPECT_TRUE(gram.update(products(history, &first, numbers(1))).joins);
  history.push_back(first);
  Pair away(2);
  for (double& y : away.y) y = -y;
  const LbfgsDirection direction = gram.update(products(history, &away, numbers(2)));
  EXPECT_FALSE(direction.joins);
  EXPECT_EQ(gram.pairs(), 1U);
  expect_near(combined(direction, history, numbers(2)), two_loops(history, numbers(2)));
  const Pair second(3);
  EXPECT_TRUE(gram.update(products(history, &second, numbers(3))).joins);
  history.push_back(second);
  gram.clear();
  EXPECT_EQ(gram.pairs(), 0U);
  EXPECT_EQ(gram.update(products({}, nullptr, numbers(3))).scale, 1);
}

TEST(LbfgsGram, OtherHistoriesAreRefused) {
  LbfgsGram gram(3);
  const Pair fresh(1);
  const auto of_one = products({Pair(0)}, &fresh, numbers(0));
  EXPECT_EQ(test::kind_of([&] { return gram.update(of_one); }), rpc::ErrorKind::internal);
  LbfgsProducts sum = products({}, &fresh, numbers(0));
  EXPECT_EQ(test::kind_of([&] { return sum.add(of_one), 0; }), rpc::ErrorKind::internal);
}

}  // namespace
}  // namespace weft::dist_optim::lbfgs_gram_test
