#include <weft/parallel/elastic/plan/generation.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::elastic {
namespace generation_test {

using rpc::AgentId;
using rpc::ErrorKind;

AgentId worker(const std::string& name, std::uint64_t incarnation = 1) { return {name, incarnation}; }
std::vector<AgentId> workers(const std::vector<std::string>& names) {
  std::vector<AgentId> ids;
  for (const std::string& name : names) ids.push_back(worker(name));
  return ids;
}
std::vector<Candidate> candidates(const std::vector<std::string>& names) {
  std::vector<Candidate> all;
  for (const std::string& name : names) all.push_back({worker(name), all.size()});
  return all;
}

TEST(NextGeneration, SurvivorsKeepTheirOrderAndNewWorkersFollowInTheirs) {
  const Generation three{.number = 4, .members = workers({"cleo", "anna", "bert"})};
  const auto next = next_generation(three, candidates({"emil", "bert", "dora", "cleo"}), {});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number, 5U);
  EXPECT_EQ(next->members, workers({"cleo", "bert", "emil", "dora"}));
  EXPECT_FALSE(next->finished);
}

TEST(NextGeneration, ARestartedWorkerIsANewOne) {
  const Generation two{.number = 1, .members = workers({"anna", "bert"})};
  const auto next = next_generation(two, {{worker("anna", 2), 0}, {worker("bert"), 1}}, {});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->members, (std::vector{worker("bert"), worker("anna", 2)}));
}

TEST(NextGeneration, KeepsTheLimits) {
  const Generation two{.number = 1, .members = workers({"anna", "bert"})};
  EXPECT_FALSE(next_generation(two, candidates({"anna", "bert"}), {.min = 3}));
  EXPECT_FALSE(next_generation({}, {}, {.min = 1}));
  EXPECT_FALSE(next_generation({}, candidates({"anna", "bert"}), {.min = 1, .start = 3}));
  EXPECT_TRUE(next_generation(two, candidates({"anna", "bert"}), {.min = 1, .start = 3}));
  const auto capped =
      next_generation(two, candidates({"dora", "cleo", "bert", "anna"}), {.min = 1, .max = 3});
  ASSERT_TRUE(capped);
  EXPECT_EQ(capped->members, workers({"anna", "bert", "dora"}));
}

TEST(NextGeneration, IsProposedByMembersIfAnyIsReady) {
  const Generation two{.number = 1, .members = workers({"anna", "bert"})};
  EXPECT_TRUE(may_propose(two, candidates({"anna", "dora"}), worker("anna")));
  EXPECT_FALSE(may_propose(two, candidates({"anna", "dora"}), worker("dora")));
  EXPECT_TRUE(may_propose(two, candidates({"dora"}), worker("dora")));
  EXPECT_TRUE(may_propose({}, candidates({"dora"}), worker("dora")));
}

TEST(SyncPlanOf, TheSourceHasTheMostCommits) {
  const auto source = [](const std::vector<Standing>& ranks) { return plan_sync(ranks).source; };
  EXPECT_EQ(source({{true, 3}, {true, 5}, {true, 5}, {true, 4}}), 1);
  EXPECT_EQ(source({{false, 9}, {true, 5}}), 1);   // the state of a new worker belongs to another training
  EXPECT_EQ(source({{false, 0}, {false, 2}}), 1);  // rank 1 has read a checkpoint
  EXPECT_EQ(source({{false, 0}, {false, 0}}), 0);
}

// The ranks of Horovod each decide whether to skip the sync, and deadlock if they differ. Here all ranks
// decide from the same data.
TEST(SyncPlanOf, ASyncIsSkippedOnlyIfAllRanksHaveTheSameCommit) {
  const auto needed = [](const std::vector<Standing>& ranks) { return plan_sync(ranks).needed; };
  EXPECT_FALSE(needed({{true, 5}, {true, 5}}));
  EXPECT_TRUE(needed({{true, 5}, {true, 4}}));
  EXPECT_TRUE(needed({{true, 5}, {false, 5}}));
  EXPECT_TRUE(needed({{false, 0}, {false, 0}}));
  EXPECT_FALSE(needed({{true, 0}}));
}

// The other ranks declared this rank dead, and trained in generation 7 without it.
TEST(SyncPlanOf, ARankThatMissedAGenerationWithCommitsIsNotSynced) {
  const auto synced = [](std::vector<Standing> ranks) {
    std::vector<bool> found;
    for (const Standing& standing : without_abandoned(std::move(ranks))) found.push_back(standing.synced);
    return found;
  };
  const Standing stayed{.synced = true, .commits = 5, .began = 7, .committed = 7};
  const Standing missed{.synced = true, .commits = 5, .began = 6, .committed = 6};
  EXPECT_EQ(synced({stayed, missed}), (std::vector{true, false}));
  EXPECT_EQ(synced({missed, missed}), (std::vector{true, true}));
  Standing idle = stayed;
  idle.committed = 6;  // generation 7 has ended before its first commit
  EXPECT_EQ(synced({idle, missed}), (std::vector{true, true}));
  Standing is_new = stayed;
  is_new.synced = false;
  EXPECT_EQ(synced({is_new, missed}), (std::vector{false, true}));
}

// The other ranks have lost their parts of that commit.
TEST(SyncPlanOf, ARankThatMissedAGenerationOfAShardedStateIsNotSynced) {
  const auto synced = [](std::vector<Standing> ranks, bool is_sharded) {
    std::vector<bool> found;
    for (const Standing& standing : without_abandoned(std::move(ranks), is_sharded))
      found.push_back(standing.synced);
    return found;
  };
  Standing alone{.synced = true, .commits = 6, .began = 6, .committed = 6, .entered = 6};
  const Standing other{.synced = true, .commits = 5, .began = 7, .committed = 6, .entered = 7};
  EXPECT_EQ(synced({alone, other, other}, true), (std::vector{false, true, true}));
  EXPECT_EQ(synced({alone, other, other}, false), (std::vector{true, true, true}));
  alone.entered = 7;  // the rank was in generation 7, and failed after the others had started it
  EXPECT_EQ(synced({alone, other, other}, true), (std::vector{true, true, true}));
  alone = {.synced = true, .commits = 5, .began = 6, .committed = 6, .entered = 6};
  EXPECT_EQ(synced({alone, other, other}, true), (std::vector{true, true, true}));
}

TEST(SyncPlanOf, NewRanksGetTheStateLaterFromAllThatHaveIt) {
  using Transfers = std::vector<Transfer>;
  const auto later = [](const std::vector<Standing>& ranks) { return plan_sync(ranks).later; };
  const Standing has{true, 5, true}, is_new{false, 9, false};
  EXPECT_EQ(later({has, is_new}), (Transfers{{0, 1}}));
  EXPECT_EQ(later({has, has, is_new, is_new, is_new}), (Transfers{{0, 2}, {1, 3}, {0, 4}}));
  EXPECT_EQ(later({has, has}), Transfers{});
  EXPECT_EQ(later({has, {true, 4, true}, is_new}), Transfers{});  // rank 1 missed a step
  EXPECT_EQ(later({{true, 5, false}, is_new}), Transfers{});      // the program commits, and does not step
  EXPECT_EQ(later({{false, 0, true}, is_new}), Transfers{});      // the first generation
}

TEST(GenerationText, IsReadAsItWasWritten) {
  const Generation generation{.number = 12,
                              .members = {worker("anna b", 7), worker("bert", ~std::uint64_t{0})}};
  EXPECT_EQ(to_text(generation), "generation 12\n7 anna b\n18446744073709551615 bert\n");
  EXPECT_EQ(generation_from_text(to_text(generation)), generation);
  const Generation finished{.number = 1, .members = workers({"anna"}), .finished = true};
  EXPECT_EQ(generation_from_text(to_text(finished)), finished);
  for (const std::string text :
       {"", "generation", "generation x", "group 1", "generation 1 over", "generation 1\nanna"})
    EXPECT_EQ(test::kind_of([&] { generation_from_text(text); }), ErrorKind::protocol_error) << text;
}

}  // namespace generation_test
}  // namespace weft::elastic
