// Compares the two-loop recursion on products with the recursion on vectors.
#include <weft/dist_optim/lbfgs/gram.h>

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

// The report of a worker that has the elements [from, to) of all vectors.
LbfgsProducts products(const std::deque<Pair>& history, const Pair* fresh, const Vector& gradient,
                       std::size_t from = 0, std::size_t to = 7) {
  const auto part = [&](const Vector& v) {
    return Vector(v.begin() + static_cast<long>(from), v.begin() + static_cast<long>(to));
  };
  const Vector g = part(gradient);
  LbfgsProducts all;
  all.g_g = dot(g, g);
  std::vector<const Pair*> pairs;
  for (const Pair& pair : history) pairs.push_back(&pair);
  if (fresh != nullptr) pairs.push_back(fresh);
  for (const Pair* pair : pairs) {
    all.s_g.push_back(dot(part(pair->s), g));
    all.y_g.push_back(dot(part(pair->y), g));
    if (fresh == nullptr) continue;
    all.s_y.push_back(dot(part(fresh->s), part(pair->y)));
    all.y_y.push_back(dot(part(fresh->y), part(pair->y)));
    if (pair != fresh) all.y_s.push_back(dot(part(fresh->y), part(pair->s)));
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

TEST(LbfgsGram, EqualsTheRecursionOnVectors) {
  LbfgsGram gram(3);
  std::deque<Pair> history;
  for (int i = 0; i < 8; ++i) {  // from the fourth pair on, the oldest pair is removed
    const Vector g = numbers(0.4 * i);
    const Pair fresh(i);
    const LbfgsDirection direction = gram.update(products(history, i > 0 ? &fresh : nullptr, g));
    EXPECT_EQ(direction.joins, i > 0);
    if (i > 0) history.push_back(fresh);
    if (history.size() > 3) history.pop_front();
    const Vector d = two_loops(history, g);
    expect_near(combined(direction, history, g), d);
    EXPECT_NEAR(gram.slope(), dot(g, d), 1e-10);
    EXPECT_EQ(gram.pairs(), history.size());
  }
}

TEST(LbfgsGram, ProductsOfSlicesAreSummed) {
  const std::deque<Pair> history{Pair(1)};
  const Pair fresh(2);
  const Vector g = numbers(3);
  LbfgsProducts sum = products(history, &fresh, g, 0, 2);
  sum.add(products(history, &fresh, g, 2, 7));
  const LbfgsProducts whole = products(history, &fresh, g);
  expect_near(sum.s_y, whole.s_y);
  expect_near(sum.y_s, whole.y_s);
  expect_near(sum.y_y, whole.y_y);
  expect_near(sum.s_g, whole.s_g);
  expect_near(sum.y_g, whole.y_g);
  EXPECT_NEAR(sum.g_g, whole.g_g, 1e-12);
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
