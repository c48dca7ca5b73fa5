#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/liveness.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <map>
#include <numeric>

namespace weft::schedule::testing {
namespace version_generators_test {

// The version of each forward by (stage, micro-batch). Expects that the backward uses the same version.
std::map<std::pair<int, int>, int> versions_of(const Schedule& schedule) {
  std::map<std::pair<int, int>, int> versions;
  for (const std::vector<Action>& actions : schedule.ranks)
    for (const Action& action : actions) {
      if (action.op == Op::forward) versions[{action.stage, action.microbatch}] = action.version;
      if (action.op == Op::backward) {
        EXPECT_EQ(versions.at({action.stage, action.microbatch}), action.version) << to_string(action);
      }
    }
  return versions;
}

// Up to four stages of one to three replicas.
template <class Check>
void for_each_replication(Check&& check) {
  for (int stages = 1; stages <= 4; ++stages)
    for (int code = 0; code < 81; ++code) {
      std::vector<int> replicas;
      for (int i = 0, rest = code; i < stages; ++i, rest /= 3) replicas.push_back(1 + rest % 3);
      if (stages < 4 && code >= 27) continue;
      for (const int m : {1, 2, 5, 12, 25})
        for (const bool vertical_sync : {false, true})
          check(Shape{std::accumulate(replicas.begin(), replicas.end(), 0), m},
                PipedreamOptions{replicas, vertical_sync});
    }
}

TEST(VersionGenerators, PipedreamIsValidForAllReplications) {
  for_each_replication([](const Shape& shape, const PipedreamOptions& options) {
    const Schedule schedule = pipedream(shape, options);
    prove_message_order(place_communication(schedule));
    versions_of(schedule);
  });
}

TEST(VersionGenerators, PipedreamStashesTheVersionOfAForwardForItsBackward) {
  EXPECT_EQ(save(pipedream({2, 4})),
            "0F0@0,0F1@0,0B0@0,0STASH@0,0STEP@1,0F2@1,0LOAD@0,0B1@0,0STASH@1,0STEP@2,0F3@2,"
            "0LOAD@1,0B2@1,0STASH@2,0STEP@3,0LOAD@2,0B3@2,0STEP@4\n"
            "1F0@0,1B0@0,1STEP@1,1F1@1,1B1@1,1STEP@2,1F2@2,1B2@2,1STEP@3,1F3@3,1B3@3,1STEP@4\n");
}

// A rank of stage s has p-s versions at a time, including the latest one.
TEST(VersionGenerators, PipedreamKeepsAVersionForEachMicroBatchInFlight) {
  for (int p = 1; p <= 16; ++p) {
    const Liveness live = liveness(pipedream({p, 64}));
    for (int rank = 0; rank < p; ++rank)
      EXPECT_EQ(live.ranks[static_cast<std::size_t>(rank)].slots(Held::weights), p - rank - 1)
          << p << ' ' << rank;
  }
}

TEST(VersionGenerators, ReplicasTakeMicroBatchesInTurnAndStepTogether) {
  const Schedule schedule = pipedream({3, 3}, {.replicas = {2, 1}});
  EXPECT_EQ(schedule.placement, (std::vector<std::vector<int>>{{0, 1}, {2}}));
  EXPECT_EQ(save(schedule),
            "0F0@0,0F2@0,0B0@0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STASH@0,0STEP@1,"
            "0LOAD@0,0B2@0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STEP@2\n"
            "0F1@0,0B1@0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STEP@1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STEP@2\n"
            "1F0@0,1B0@0,1STEP@1,1F1@1,1B1@1,1STEP@2,1F2@2,1B2@2,1STEP@3\n");
}

// Without it, later stages use newer versions. With it, all use that of the first stage.
TEST(VersionGenerators, VerticalSyncGivesAMicroBatchOneVersionOnAllStages) {
  const auto free = versions_of(pipedream({3, 8}));
  const auto synchronous = versions_of(pipedream({3, 8}, {.vertical_sync = true}));
  EXPECT_LT(free.at({0, 5}), free.at({2, 5}));
  for (int i = 0; i < 8; ++i)
    for (int stage = 0; stage < 3; ++stage)
      EXPECT_EQ(synchronous.at({stage, i}), free.at({0, i})) << stage << ' ' << i;
}

TEST(VersionGenerators, PipedreamRefusesReplicasThatAreNotTheRanks) {
  EXPECT_THROW(pipedream({3, 3}, {.replicas = {1, 1}}), rpc::Error);
  EXPECT_THROW(pipedream({3, 3}, {.replicas = {3, 0}}), rpc::Error);
}

// W(t+1) = W(t) - f(gradient at W(t-1)): batch t uses version t-1.
TEST(VersionGenerators, PipedreamTwoBwUsesTheVersionBeforeTheLatest) {
  for (int p = 1; p <= 8; ++p)
    for (const int m : {1, 2, p, 2 * p + 1}) {
      const Schedule schedule = pipedream_2bw({p, m}, 4);
      prove_message_order(place_communication(schedule));
      for (const auto& [place, version] : versions_of(schedule))
        EXPECT_EQ(version, std::max(0, place.second / m - 1)) << p << ' ' << m;
      for (const RankLiveness& rank : liveness(schedule).ranks)
        EXPECT_LE(rank.slots(Held::weights), 1) << p << ' ' << m;
    }
}

TEST(VersionGenerators, PipedreamTwoBwStepsAfterEachBatch) {
  EXPECT_EQ(save(pipedream_2bw({2, 2}, 2)),
            "0F0@0,0F1@0,0B0@0,0F2@0,0B1@0,0STASH@0,0STEP@1,0LOAD@0,0F3@0,0B2@0,0B3@0,0STEP@2\n"
            "1F0@0,1B0@0,1F1@0,1B1@0,1STASH@0,1STEP@1,1LOAD@0,1F2@0,1B2@0,1F3@0,1B3@0,1STEP@2\n");
  EXPECT_THROW(pipedream_2bw({2, 2}, 0), rpc::Error);
}

}  // namespace version_generators_test
}  // namespace weft::schedule::testing
