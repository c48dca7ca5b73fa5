#include <weft/parallel/partition/profile.h>

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace profile_test {

Profile named(const std::vector<std::string>& names, std::vector<Edge> edges) {
  Profile profile{{}, std::move(edges)};
  for (const std::string& name : names) profile.layers.push_back({.name = name});
  return profile;
}

std::string refusal(const Profile& profile) {
  return test::message_of([&] { return topological_order(profile); });
}

TEST(Profile, TheOrderFollowsTheEdgesAndThenTheIndices) {
  EXPECT_EQ(topological_order(named({"a", "b", "c", "d"}, {{3, 0}, {0, 2}, {1, 2}})),
            (std::vector<std::size_t>{1, 3, 0, 2}));
}

TEST(Profile, ASequenceIsAChain) {
  const Profile chain = sequence({{.name = "a"}, {.name = "b"}, {.name = "c"}});
  EXPECT_EQ(chain.edges, (std::vector<Edge>{{0, 1}, {1, 2}}));
}

TEST(Profile, RefusesACycleAndNamesIt) {
  EXPECT_EQ(refusal(named({"in", "a", "b", "c", "out"}, {{0, 1}, {1, 2}, {2, 3}, {3, 1}, {3, 4}})),
            "profile: the edges form a cycle: a -> b -> c -> a");
  EXPECT_EQ(refusal(named({"a"}, {{0, 0}})), "profile: the edges form a cycle: a -> a");
}

TEST(Profile, RefusesInvalidGraphs) {
  EXPECT_EQ(refusal({}), "profile: it has no layers, expected at least one");
  EXPECT_EQ(refusal(named({"a", "a"}, {})), "profile: two layers have the name 'a', expected unique names");
  EXPECT_EQ(refusal(named({"a", "b"}, {{0, 2}})),
            "profile: edge 0 -> 2 names a layer that does not exist, expected indices below 2");
  EXPECT_EQ(refusal({{{.name = "a", .backward_ms = -1}}, {}}),
            "profile: the backward time of layer 'a' is -1.000000, expected a finite number of at least 0");
  EXPECT_EQ(refusal({{{.name = "a", .parameter_bytes = INFINITY}}, {}}),
            "profile: the parameter size of layer 'a' is inf, expected a finite number of at least 0");
}

TEST(Profile, TheTimeOfAnInputDoesNotCount) {
  const Layer layer{.name = "a", .description = "Input0", .forward_ms = 1500, .backward_ms = 500};
  EXPECT_EQ(compute_seconds(sequence({layer, {.name = "b"}}), 0), 0);
  EXPECT_EQ(compute_seconds(sequence({{.name = "b"}, layer}), 1), 2);  // it has an edge into it
}

}  // namespace profile_test
}  // namespace weft::partition::testing
