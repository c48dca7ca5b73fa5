#include <weft/parallel/partition/plan.h>

#include <weft/parallel/partition/pipedream.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/schedule/validate.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace plan_test {

Profile skip_connection() {
  Profile profile = sequence(
      {{"a", "", 1000, 2000}, {"b", "", 2000, 2000}, {"c", "", 1000, 3000}, {"d", "", 2000, 1000, 8}});
  profile.edges.push_back({0, 3});
  return profile;
}

TEST(Plan, ARankCreatesOnlyTheLayersOfItsStage) {
  const Profile profile = skip_connection();
  const std::vector<std::size_t> counts{1, 2, 1};
  Partition partition = cut_by_count(profile, counts);
  partition.stages[1].ranks = {1, 4};
  std::vector<std::size_t> asked;
  const auto make = [&](std::size_t layer) {
    asked.push_back(layer);
    return profile.layers[layer].name;
  };
  EXPECT_EQ(make_layers(partition, 4, make), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(asked, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(stage_on(partition, 4), 1U);
  EXPECT_EQ(stage_on(partition, 3), std::nullopt);
  EXPECT_TRUE(make_layers(partition, 3, make).empty());
  EXPECT_EQ(test::message_of([&] { return stage_on(partition, -1); }),
            "stage_on: rank -1, expected at least 0");
}

TEST(Plan, EdgesIncludeSkipConnections) {
  const Profile profile = skip_connection();
  EXPECT_EQ(edges_of(profile, cut_evenly(profile, 4)),
            (std::vector<schedule::Edge>{{0, 1}, {0, 3}, {1, 2}, {2, 3}}));
  EXPECT_EQ(edges_of(profile, cut_evenly(profile, 1)), std::vector<schedule::Edge>{});
}

TEST(Plan, AnotherMicrobatchTakesTheTimeOfTheBottleneck) {
  const Profile profile = skip_connection();
  for (std::size_t stages = 1; stages <= 4; ++stages) {
    const Partition partition = cut_evenly(profile, stages);
    const auto seconds = [&](int microbatches) {
      const auto plan = schedule::place_communication(schedule_of(profile, partition, microbatches));
      schedule::prove_message_order(plan);
      return schedule::predict(plan, costs_of(partition)).time;
    };
    EXPECT_NEAR(seconds(13) - seconds(12), partition.bottleneck_seconds, 1e-9);
  }
}

// 2 hosts of 2 workers. Each host runs the same two stages, so that the replicas of a stage are on both
// hosts.
TEST(Plan, TheScheduleHasTheRanksOfThePartition) {
  const Profile profile = sequence({{"a", "", 500, 500, 1e9, 1}, {"b", "", 500, 500, 0, 1}});
  const std::vector<Level> levels{{2, 1e9}, {2, 1e9}};
  Partition partition = pipedream(profile, levels, {.straight = true, .fewer_workers = true});
  ASSERT_EQ(partition.stages.size(), 2U);
  partition.stages[0].ranks = {0, 2};
  partition.stages[1].ranks = {1, 3};
  const auto plan = schedule_of(profile, partition, 4);
  EXPECT_EQ(plan.placement, (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(plan.ranks[2].front(),
            (schedule::Action{.op = schedule::Op::forward, .stage = 0, .microbatch = 1, .version = 0}));
  schedule::validate(plan);
}

TEST(Plan, AnIdleRankHasNoActions) {
  const Profile profile = skip_connection();
  Partition partition = cut_evenly(profile, 2);
  partition.stages[1].ranks = {3};
  const auto plan = schedule_of(profile, partition, 2);
  ASSERT_EQ(plan.ranks.size(), 4U);
  EXPECT_TRUE(plan.ranks[1].empty());
  EXPECT_FALSE(plan.ranks[3].empty());
}

}  // namespace plan_test
}  // namespace weft::partition::testing
