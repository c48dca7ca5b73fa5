// Runs of elements, and the common elements of two selections, compared with a search through all elements.
#include <weft/parallel/sharded/checkpoint/runs.h>

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace weft::sharded::runs_test {
namespace {

// The elements at some positions, one by one.
std::vector<std::int64_t> elements_at(const Runs& runs, Positions positions) {
  std::vector<std::int64_t> elements;
  for (std::int64_t at = positions.first; at < positions.second; ++at) elements.push_back(runs.element(at));
  return elements;
}

TEST(Runs, AreTheColumnsOfAMatrix) {
  const Runs right{.first = 2, .length = 2, .distance = 4};
  EXPECT_EQ(right.count(12), 6);
  EXPECT_EQ(elements_at(right, {0, 6}), (std::vector<std::int64_t>{2, 3, 6, 7, 10, 11}));
  EXPECT_EQ(right.position_from(0), 0);
  EXPECT_EQ(right.position_from(3), 1);
  EXPECT_EQ(right.position_from(4), 2);
  EXPECT_EQ(right.position_from(5), 2);
  EXPECT_EQ(right.position_from(7), 3);
  EXPECT_TRUE(right.fit(12));
  EXPECT_FALSE(right.fit(11));
  EXPECT_FALSE((Runs{3, 2, 4}).fit(12));
  EXPECT_FALSE((Runs{0, 0, 4}).fit(12));
  EXPECT_FALSE((Runs{-1, 2, 4}).fit(12));
  EXPECT_EQ(Runs::all(0).count(0), 0);
  EXPECT_TRUE(Runs::all(0).fit(0));
}

TEST(Runs, AdjacentSharedElementsAreMerged) {
  const Runs same{.first = 2, .length = 2, .distance = 4};
  EXPECT_EQ(shared_elements(same, {1, 6}, same, {0, 5}), (std::vector<SharedElements>{{1, 1, 4}}));
  EXPECT_EQ(shared_elements(Runs::all(12), {0, 12}, same, {0, 6}),
            (std::vector<SharedElements>{{2, 0, 2}, {6, 2, 2}, {10, 4, 2}}));
  EXPECT_EQ(shared_elements(Runs{0, 2, 4}, {0, 6}, same, {0, 6}), std::vector<SharedElements>());
}

TEST(Runs, SharedElementsEqualThoseOfASearch) {
  std::mt19937 random(3);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  constexpr std::int64_t elements = 48;
  const auto draw_runs = [&] {
    const std::int64_t distances[] = {4, 6, 8, 12, 24, 48}, distance = distances[draw(0, 5)];
    const std::int64_t first = draw(0, distance - 1);
    return Runs{first, draw(1, distance - first), distance};
  };
  const auto draw_positions = [&](const Runs& runs) {
    const std::int64_t begin = draw(0, runs.count(elements));
    return Positions{begin, draw(begin, runs.count(elements))};
  };
  for (int round = 0; round < 2000; ++round) {
    const Runs to = draw_runs(), from = draw_runs();
    const Positions in_to = draw_positions(to), in_from = draw_positions(from);
    const auto a = elements_at(to, in_to), b = elements_at(from, in_from);
    std::set<std::pair<std::int64_t, std::int64_t>> expected, actual;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t j = 0; j < b.size(); ++j)
        if (a[i] == b[j])
          expected.emplace(in_to.first + static_cast<std::int64_t>(i),
                           in_from.first + static_cast<std::int64_t>(j));
    for (const SharedElements& each : shared_elements(to, in_to, from, in_from))
      for (std::int64_t i = 0; i < each.count; ++i) actual.emplace(each.to + i, each.from + i);
    ASSERT_EQ(actual, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace weft::sharded::runs_test
