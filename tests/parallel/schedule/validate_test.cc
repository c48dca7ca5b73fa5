#include <weft/parallel/schedule/validate.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/text.h>

#include <gtest/gtest.h>

#include <string>

#include "tests/support/errors.h"

namespace weft::schedule::testing {
namespace validate_test {

std::string verdict(const Schedule& schedule) {
  return test::message_of([&] { return validate(schedule), 0; });
}
std::string verdict(std::string_view text) { return verdict(load(text)); }

std::string order_verdict(std::string_view text) {
  return test::message_of([&] { return prove_message_order(load(text)), 0; });
}

constexpr auto valid = "(no error)";

TEST(Validate, ATrainingStepAndAnEvaluationAreValid) {
  EXPECT_EQ(verdict("0F0,0B0\n1F0,1I0,1W0\n"), valid);
  EXPECT_EQ(verdict("0F0,0F1\n1F0,1F1\n"), valid);
  EXPECT_EQ(verdict("0F0,,0B0\n1F0,1RECOMPUTE0,1B0\n"), valid);
}

TEST(Validate, EachComputationOccursOnce) {
  EXPECT_EQ(verdict("0F0,0B0,0F0\n"),
            "validate: rank 0, action 2 (0F0): repeats rank 0, action 0 (0F0), expected it once");
  EXPECT_EQ(verdict("0F0,0B0,0W0\n"),
            "validate: rank 0, action 2 (0W0): repeats rank 0, action 1 (0B0), expected it once");
  EXPECT_EQ(verdict("0F0,0B0\n1F0\n"),
            "validate: rank 1: no input gradient of stage 1, micro-batch 0, expected one");
  EXPECT_EQ(verdict("0F0,0I0\n"),
            "validate: rank 0: no weight gradient of stage 0, micro-batch 0, expected one");
  EXPECT_EQ(verdict("0B0\n"), "validate: rank 0: no forward of stage 0, micro-batch 0, expected one");
}

TEST(Validate, ComputationsOfAMicroBatchAreInOrder) {
  EXPECT_EQ(verdict("0B0,0F0\n"),
            "validate: rank 0, action 0 (0B0): precedes rank 0, action 1 (0F0), expected it later");
  EXPECT_EQ(verdict("0F0,0W0,0I0\n"),
            "validate: rank 0, action 1 (0W0): precedes rank 0, action 2 (0I0), expected it later");
  EXPECT_EQ(verdict("0F0,0B0,0RECOMPUTE0\n"),
            "validate: rank 0, action 1 (0B0): precedes rank 0, action 2 (0RECOMPUTE0), expected it later");
}

TEST(Validate, AMicroBatchIsOnTheRankOfItsReplica) {
  EXPECT_EQ(verdict("0F0,0F2\n0F1,0F3\n"), valid);
  EXPECT_EQ(verdict("0F0,0F1\n0F2,0F3\n"),
            "validate: rank 0, action 1 (0F1): found on this rank, expected on rank 1, which computes this "
            "micro-batch of the stage");
  Schedule elsewhere = load("0F0,0B0\n1F0,1B0\n");
  elsewhere.ranks[0].push_back({.op = Op::unshard, .stage = 1});
  EXPECT_EQ(
      verdict(elsewhere),
      "validate: rank 0, action 2 (1UNSHARD): stage 1 is not on this rank, expected its action on rank 1");
}

TEST(Validate, IndicesAreInRange) {
  Schedule schedule = load("0F0,0B0\n");
  schedule.ranks[0].push_back({.op = Op::forward, .stage = 1, .microbatch = 0});
  EXPECT_EQ(verdict(schedule), "validate: rank 0, action 2 (1F0): stage 1, expected 0 to 0");
  schedule.ranks[0].back() = {.op = Op::forward, .stage = 0, .microbatch = 1};
  EXPECT_EQ(verdict(schedule), "validate: rank 0, action 2 (0F1): micro-batch 1, expected 0 to 0");
  schedule.edges = {{0, 1}};
  EXPECT_EQ(verdict(schedule), "validate: edge from stage 0 to 1, expected a later one of 1 stages");
  schedule.placement = {{1}};
  EXPECT_EQ(verdict(schedule), "validate: stage 0 is on rank 1, expected one of 1 ranks");
  schedule.placement = {{}};
  EXPECT_EQ(verdict(schedule), "validate: stage 0 is on no rank, expected at least one");
}

// Rank 0 needs the gradient of micro-batch 0 before it computes micro-batch 1. Rank 1 needs micro-batch 1
// first.
TEST(Validate, ADeadlockIsShownAsACycle) {
  const std::string error = verdict("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  EXPECT_NE(error.find("validate: the schedule deadlocks: "), std::string::npos) << error;
  for (const char* part : {"rank 0, action 2 (0F1) waits for rank 0, action 1 (0B0)",
                           "waits for message 1SEND_B0", "rank 1, action 0 (1F1) waits for message 0SEND_F1"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(Validate, PartsOfAPairDoNotWaitForEachOther) {
  EXPECT_EQ(verdict("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"), valid);
  EXPECT_EQ(
      verdict("(0F0;1F0)OVERLAP_F_B\n"),
      "validate: rank 0, action 0 ((0F0;1F0)OVERLAP_F_B): one part of the pair waits for the other, expected "
      "independent computations");
}

// --- Messages ---

TEST(Validate, EveryValueThatChangesItsRankIsSentAndReceived) {
  EXPECT_EQ(verdict("0F0,0SEND_F0\n1F0\n"), "validate: rank 1: no 1RECV_F0, expected one");
  EXPECT_EQ(verdict("0F0\n1RECV_F0,1F0\n"), "validate: rank 0: no 0SEND_F0, expected one");
  EXPECT_EQ(verdict("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "validate: rank 0: no 0RECV_B0, expected one");
  EXPECT_EQ(verdict("0F0,0SEND_F0,0SEND_F0\n1RECV_F0,1F0\n"),
            "validate: rank 0, action 2 (0SEND_F0): repeats rank 0, action 1 (0SEND_F0), expected it once");
  EXPECT_EQ(verdict("0SEND_F0,0F0\n1RECV_F0,1F0\n"),
            "validate: rank 0, action 0 (0SEND_F0): precedes rank 0, action 1 (0F0), expected it later");
  EXPECT_EQ(verdict("0F0,0SEND_F0\n1F0,1RECV_F0\n"),
            "validate: rank 1, action 0 (1F0): precedes rank 1, action 1 (1RECV_F0), expected it later");
  EXPECT_EQ(
      verdict("0F0,0SEND_F0,1F0\n2F0\n"),
      "validate: rank 0, action 1 (0SEND_F0): both stages of the edge are on this rank, expected no message");
  EXPECT_EQ(
      verdict("0F0,0SEND_F0,0RECV_B0\n1RECV_F0,1F0,1SEND_B0\n"),
      "validate: rank 1, action 2 (1SEND_B0): a gradient in a schedule without a backward, expected none");
}

TEST(Validate, MessagesFollowTheEdgesOfTheGraph) {
  Schedule schedule = load("0F0,0SEND_F0,0SEND_F0:2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2RECV_F0:0,2F0\n");
  EXPECT_EQ(verdict(schedule), valid);
  schedule.edges = chain(3);
  EXPECT_EQ(verdict(schedule),
            "validate: rank 0, action 2 (0SEND_F0:2): the edge from stage 0 to 2 is not in the graph of the "
            "stages, expected one of its 2 edges");
}

TEST(Validate, AWaitFollowsItsSend) {
  EXPECT_EQ(verdict("0F0,0SEND_F0,0WAIT_SEND_F0\n1RECV_F0,1F0\n"), valid);
  EXPECT_EQ(
      verdict("0F0,0WAIT_SEND_F0,0SEND_F0\n1RECV_F0,1F0\n"),
      "validate: rank 0, action 1 (0WAIT_SEND_F0): precedes rank 0, action 2 (0SEND_F0), expected it later");
}

// Rank 0 waits until rank 1 has received micro-batch 1. Rank 1 receives micro-batch 2 first.
TEST(Validate, AWaitForASendThatIsNotReceivedIsADeadlock) {
  EXPECT_EQ(verdict("0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2\n1RECV_F0,1F0,1RECV_F2,1F2,1RECV_F1,1F1\n"),
            valid);
  const std::string error = verdict(
      "0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1,0F2,0SEND_F2\n1RECV_F0,1F0,1RECV_F2,1F2,1RECV_F1,1F1\n");
  EXPECT_NE(error.find("deadlocks"), std::string::npos) << error;
}

TEST(Validate, AllReplicasReduceEquallyOften) {
  EXPECT_EQ(verdict("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n0F1,0B1,0REDUCE_GRAD\n"), valid);
  EXPECT_EQ(verdict("0F0,0B0,0REDUCE_GRAD\n0F1,0B1\n"),
            "validate: stage 0: rank 1 starts 0 reductions and waits for 0, expected 1 as on rank 0");
}

// --- Parameters ---

TEST(Validate, VersionsAreStashedBeforeTheyAreLoaded) {
  EXPECT_EQ(verdict("0F0@0,0F1@0,0B0@0,0STASH@0,0STEP@1,0LOAD@0,0B1@0,0STEP@2\n"), valid);
  EXPECT_EQ(verdict("0F0@0,0F1@0,0B0@0,0STEP@1,0LOAD@0,0B1@0,0STEP@2\n"),
            "validate: rank 0, action 4 (0LOAD@0): version 0 of the weights, expected the latest, 1");
  EXPECT_EQ(verdict("0F0@0,0F1@0,0B0@0,0STASH@0,0STEP@1,0B1@0\n"),
            "validate: rank 0, action 5 (0B1@0): version 0 of the weights, expected 1");
  EXPECT_EQ(verdict("0F0,0B0,0STEP@2\n"),
            "validate: rank 0, action 2 (0STEP@2): version 2 of the weights, expected 1");
}

TEST(Validate, AllComputationsOfAMicrobatchUseOneVersion) {
  for (const char* schedule : {"0F0@0,0STEP@1,0B0@1\n", "0F0,0STEP,0B0\n"})
    EXPECT_NE(verdict(schedule).find("version 1 of the weights, expected 0 as in the forward"),
              std::string::npos)
        << verdict(schedule);
  EXPECT_EQ(verdict("0F0,0STASH@0,0STEP,0LOAD@0,0B0\n"), valid);
}

TEST(Validate, AShardedStageIsUnshardedWhenItComputes) {
  EXPECT_EQ(verdict("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n"), valid);
  EXPECT_EQ(verdict("0UNSHARD,0F0,0RESHARD,0B0\n"),
            "validate: rank 0, action 3 (0B0): the stage is sharded, expected UNSHARD before it");
  EXPECT_EQ(verdict("0UNSHARD,0UNSHARD,0F0\n"),
            "validate: rank 0, action 1 (0UNSHARD): the stage is unsharded, expected it to be sharded");
  EXPECT_EQ(verdict("0RESHARD,0F0\n"),
            "validate: rank 0, action 0 (0RESHARD): the stage is sharded, expected it to be unsharded");
}

// --- The order of messages ---

TEST(ProveMessageOrder, AcceptsOneOrderOfAllMessages) {
  EXPECT_EQ(order_verdict("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"), valid);
}

// Two messages in one direction. With a queue for each pair of ranks, the receive for micro-batch 1 would get
// micro-batch 0.
TEST(ProveMessageOrder, RefusesReceivesInAnotherOrderThanSends) {
  constexpr auto crossed = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0\n";
  EXPECT_EQ(verdict(crossed), valid);
  EXPECT_EQ(order_verdict(crossed),
            "prove_message_order: the ranks list their messages in different orders. If sends and receives "
            "block, these "
            "wait for each other: rank 0, action 1 (0SEND_F0); rank 1, action 0 (1RECV_F1)");
}

// Messages in both directions: each rank sends before it receives.
TEST(ProveMessageOrder, RefusesSendsOfBothRanksBeforeTheirReceives) {
  constexpr auto both_send =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_"
      "B1\n";
  EXPECT_EQ(verdict(both_send), valid);
  EXPECT_NE(order_verdict(both_send).find("rank 0, action 3 (0SEND_F1); rank 1, action 3 (1SEND_B0)"),
            std::string::npos);
}

TEST(ProveMessageOrder, RefusesACircleOfThreeRanks) {
  constexpr auto circle =
      "0F0,0SEND_F0:2,0SEND_F0\n"
      "1RECV_F0,1F0,1SEND_F0\n"
      "2RECV_F0,2RECV_F0:0,2F0\n";
  EXPECT_EQ(verdict(circle), valid);
  EXPECT_NE(order_verdict(circle).find(
                "rank 0, action 1 (0SEND_F0:2); rank 1, action 0 (1RECV_F0); rank 2, action 0 (2RECV_F0)"),
            std::string::npos);
}

TEST(ProveMessageOrder, RefusesReductionsThatMessagesKeepFromStarting) {
  // Each replica of stage 0 waits for the reduction of the other one before it sends the message that stage 1
  // receives first.
  EXPECT_EQ(order_verdict("0F0,0SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
                          "0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0F1,0SEND_F1\n"
                          "1RECV_F0,1F0,1RECV_F1,1F1\n"),
            valid);
  EXPECT_NE(order_verdict("0F0,0SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
                          "0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0F1,0SEND_F1\n"
                          "1RECV_F1,1F1,1RECV_F0,1F0\n"),
            valid);
}

}  // namespace validate_test
}  // namespace weft::schedule::testing
