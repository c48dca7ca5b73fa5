#include <weft/parallel/partition/internal/state_space.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace state_space_test {

constexpr std::size_t any_number = 1'000'000;

// s -> a0 -> a1 -> ... -> t and s -> b0 -> ... -> t. Layer i has 2^i bytes of activations.
Profile two_branches(std::size_t first, std::size_t second) {
  Profile profile;
  const auto add = [&](const std::string& name) {
    profile.layers.push_back(
        {.name = name, .forward_ms = 1, .activation_bytes = static_cast<double>(1 << profile.layers.size())});
    return profile.layers.size() - 1;
  };
  const std::size_t source = add("s");
  std::vector<std::size_t> ends;
  for (const std::size_t length : {first, second}) {
    std::size_t last = source;
    for (std::size_t i = 0; i < length; ++i) {
      const std::size_t next = add((ends.empty() ? "a" : "b") + std::to_string(i));
      profile.edges.push_back({last, next});
      last = next;
    }
    ends.push_back(last);
  }
  const std::size_t sink = add("t");
  for (const std::size_t end : ends) profile.edges.push_back({end, sink});
  return profile;
}

TEST(StateSpace, AChainHasAStateAfterEachLayer) {
  const StateSpace states(sequence({{.name = "a"}, {.name = "b"}, {.name = "c"}}), Cuts::all, any_number);
  ASSERT_EQ(states.size(), 4U);
  EXPECT_EQ(states.layers_between(1, 3), (std::vector<std::size_t>{1, 2}));
  EXPECT_TRUE(states.contains(2, 1));
  EXPECT_FALSE(states.contains(1, 2));
}

TEST(StateSpace, BranchesMultiplyTheStates) {
  for (std::size_t first = 1; first <= 3; ++first)
    for (std::size_t second = 1; second <= 3; ++second)  // nothing; s and any part of both branches; all
      EXPECT_EQ(StateSpace(two_branches(first, second), Cuts::all, any_number).size(),
                1 + (first + 1) * (second + 1) + 1);
}

TEST(StateSpace, AWholeBranchIsOneStep) {
  EXPECT_EQ(StateSpace(two_branches(3, 3), Cuts::whole_branches, any_number).size(), 1U + 2 * 2 + 1);
}

TEST(StateSpace, CutsInOrderHaveAStateForEachLayer) {
  EXPECT_EQ(StateSpace(two_branches(3, 3), Cuts::in_order, 0).size(), 9U);
}

TEST(StateSpace, TakesTheFinestCutsThatFit) {
  const Profile profile = two_branches(3, 3);
  EXPECT_EQ(StateSpace(profile, std::nullopt, 18).cuts(), Cuts::all);
  EXPECT_EQ(StateSpace(profile, std::nullopt, 17).cuts(), Cuts::whole_branches);
  EXPECT_EQ(StateSpace(profile, std::nullopt, 5).cuts(), Cuts::in_order);
}

TEST(StateSpace, RefusesMoreStatesThanAllowed) {
  test::expect_error([] { return StateSpace(two_branches(3, 3), Cuts::all, 17).size(); },
                     rpc::ErrorKind::resource_exhausted,
                     test::whole("partition: the graph can be cut at more than 17 places (antichains), "
                                 "expected no more: keep branches "
                                 "whole, cut the topological order, or allow more cuts"));
}

TEST(StateSpace, CountsTheOutputsThatCrossACut) {
  // s (1), a0 (2), a1 (4), b0 (8), t (16)
  const StateSpace states(two_branches(2, 1), Cuts::all, any_number);
  std::map<std::vector<std::size_t>, std::pair<double, double>> found;
  for (std::size_t state = 0; state < states.size(); ++state)
    found[states.layers_between(0, state)] = {states.crossing_bytes(state), states.antichain_bytes(state)};
  const std::map<std::vector<std::size_t>, std::pair<double, double>> expected = {
      {{}, {0, 0}},
      {{0}, {1, 1}},
      {{0, 1}, {1 + 2, 1 + 2}},  // b0 reads s
      {{0, 1, 2}, {1 + 4, 1 + 4}},
      {{0, 3}, {1 + 8, 1 + 8}},         // a0 reads s
      {{0, 1, 3}, {2 + 8, 1 + 2 + 8}},  // PipeDream counts s: b0 reads it, which is not before a0
      {{0, 1, 2, 3}, {4 + 8, 1 + 4 + 8}},
      {{0, 1, 2, 3, 4}, {0, 16}}};
  EXPECT_EQ(found, expected);
}

TEST(StateSpace, InputsAndUnreadItemsAreExcluded) {
  const Profile profile = sequence({{.name = "in", .description = "Input0", .forward_ms = 5},
                                    {.name = "a"},
                                    {.name = "b", .description = "__getitem__(0)"}});
  const StateSpace states(profile, Cuts::all, any_number);
  EXPECT_EQ(states.size(), 2U);
  EXPECT_EQ(states.layers_between(0, 1), (std::vector<std::size_t>{1}));
  EXPECT_EQ(
      test::message_of([] {
        return StateSpace(sequence({{.name = "in", .description = "Input0"}}), Cuts::all, any_number).size();
      }),
      "partition: the profile has only inputs, expected at least one other layer");
}

}  // namespace state_space_test
}  // namespace weft::partition::testing
