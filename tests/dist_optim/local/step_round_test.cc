#include <weft/dist_optim/local/step_round.h>
#include <weft/rpc/core/error.h>

#include <string>

#include <gtest/gtest.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_step_round_test {
namespace {

TEST(StepRound, NamesTrainersInMessages) {
  StepRound round(2);
  round.join("1f", "alice");
  round.join("2e", "bob");
  const std::string full =
      refusal(rpc::ErrorKind::invalid_argument, [&] { round.join("3d", "carol"); }, "trainer carol");
  EXPECT_NE(full.find("alice, bob"), std::string::npos) << full;
  round.arrive("1f");
  refusal(rpc::ErrorKind::failed_precondition, [&] { round.arrive("1f"); }, "trainer alice");
  EXPECT_EQ(round.die("2e"), std::vector<std::string>{"1f"});
  refusal(rpc::ErrorKind::aborted, [&] { round.arrive("1f"); }, "trainer bob died");
}

TEST(StepRound, WaitsForTheNumberOfTrainers) {
  StepRound round(2);
  round.join("a");
  round.arrive("a");
  EXPECT_FALSE(round.complete());
  round.join("b");
  round.join("b");
  EXPECT_FALSE(round.complete());
  round.arrive("b");
  EXPECT_TRUE(round.complete());
}

TEST(StepRound, ANewTrainerTakesTheSeatOfOneThatLeft) {
  StepRound round(2);
  round.join("a");
  round.join("b");
  round.leave("b");
  round.join("c");
  round.arrive("a");
  EXPECT_FALSE(round.complete());
  round.arrive("c");
  EXPECT_TRUE(round.complete());
  refusal(rpc::ErrorKind::invalid_argument, [&] { round.join("d"); });
}

TEST(StepRound, DoesNotEndWithATrainerThatLeftWhileOthersWork) {
  StepRound round(2);
  round.join("a");
  round.join("b");
  round.arrive("a");
  round.leave("a");
  EXPECT_FALSE(round.complete()) << "b has not stepped";
  round.arrive("b");
  EXPECT_TRUE(round.complete());
}

TEST(StepRound, AnEmptySeatOfTheDeadFailsEveryStepUntilItIsTaken) {
  StepRound round(2);
  round.join("a");
  round.join("b");
  EXPECT_TRUE(round.die("b").empty());
  for (int i = 0; i < 3; ++i) {
    refusal(rpc::ErrorKind::aborted, [&] { round.arrive("a"); }, "b died");
  }
  round.join("b2");
  round.arrive("a");
  round.arrive("b2");
  EXPECT_TRUE(round.complete());
}

TEST(StepRound, ATrainerThatArrivesWhileARoundIsClosedIsInTheNext) {
  StepRound round(0);
  round.join("a");
  round.join("b");
  round.arrive("a");
  round.arrive("b");
  round.close();
  round.join("c");
  round.arrive("c");
  EXPECT_FALSE(round.complete());
  refusal(rpc::ErrorKind::failed_precondition, [&] { round.arrive("a"); });
  EXPECT_EQ(round.die("b"), std::vector<std::string>{"c"});  // its step was not in the closed round
  round.finish("a");
  round.finish("b");
  refusal(rpc::ErrorKind::aborted, [&] { round.arrive("a"); });
  round.arrive("a");
  EXPECT_FALSE(round.complete());
  round.arrive("c");
  EXPECT_TRUE(round.complete());
}

}  // namespace
}  // namespace weft::dist_optim::local_step_round_test
