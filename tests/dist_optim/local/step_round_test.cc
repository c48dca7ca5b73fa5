#include <weft/dist_optim/local/step_round.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace weft::dist_optim::local_step_round_test {
namespace {

std::string refusal(rpc::ErrorKind kind, const std::function<void()>& code) {
  try {
    code();
  } catch (const rpc::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void close(StepRound& round, std::initializer_list<const char*> trainers) {
  ASSERT_TRUE(round.complete());
  round.close();
  for (const char* trainer : trainers) round.finish(trainer);
}

TEST(StepRound, WaitsForEveryTrainerThatIsRegisteredWhenItCloses) {
  StepRound round(0);
  EXPECT_FALSE(round.complete());
  round.join("a");
  EXPECT_FALSE(round.complete());
  round.arrive("a");
  EXPECT_TRUE(round.complete()) << "a is the only one";
  round.join("b");
  EXPECT_FALSE(round.complete());
  EXPECT_NE(refusal(rpc::ErrorKind::failed_precondition, [&] { round.arrive("a"); }).find("a"),
            std::string::npos);
  round.arrive("b");
  close(round, {"a", "b"});
  EXPECT_FALSE(round.complete());
  round.arrive("a");
  EXPECT_FALSE(round.complete());
}

TEST(StepRound, NamesTrainersInMessages) {
  StepRound round(2);
  round.join("1f", "alice");
  round.join("2e", "bob");
  const std::string full = refusal(rpc::ErrorKind::invalid_argument, [&] { round.join("3d", "carol"); });
  EXPECT_NE(full.find("trainer carol"), std::string::npos) << full;
  EXPECT_NE(full.find("alice, bob"), std::string::npos) << full;
  round.arrive("1f");
  const std::string twice = refusal(rpc::ErrorKind::failed_precondition, [&] { round.arrive("1f"); });
  EXPECT_NE(twice.find("trainer alice"), std::string::npos) << twice;
  EXPECT_EQ(round.die("2e"), std::vector<std::string>{"1f"});
  const std::string died = refusal(rpc::ErrorKind::aborted, [&] { round.arrive("1f"); });
  EXPECT_NE(died.find("trainer bob died"), std::string::npos) << died;
}

TEST(StepRound, WaitsForTheNumberOfTrainers) {
  StepRound round(2);
  round.join("a");
  round.arrive("a");
  EXPECT_FALSE(round.complete());
  round.join("b");
  round.join("b");
  EXPECT_FALSE(round.complete());
  std::string message = refusal(rpc::ErrorKind::invalid_argument, [&] { round.join("c"); });
  EXPECT_NE(message.find("trainer c"), std::string::npos);
  EXPECT_NE(message.find("a, b"), std::string::npos);
  round.arrive("b");
  EXPECT_TRUE(round.complete());
}

TEST(StepRound, ContinuesWithoutATrainerThatLeft) {
  for (std::size_t seats : {0, 3}) {
    StepRound round(seats);
    for (const char* name : {"a", "b", "c"}) round.join(name);
    round.arrive("a");
    round.arrive("b");
    round.leave("c");
    EXPECT_TRUE(round.complete());
    round.leave("a");  // its step stays in the round
    close(round, {"a", "b"});
    round.arrive("b");
    EXPECT_TRUE(round.complete());
  }
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

TEST(StepRound, ADeathFailsTheRoundOnceForEachSurvivor) {
  StepRound round(0);
  for (const char* name : {"a", "b", "c"}) round.join(name);
  round.arrive("a");
  EXPECT_EQ(round.die("c"), std::vector<std::string>{"a"});
  round.arrive("a");  // the trainer got the error and tries again
  EXPECT_FALSE(round.complete());
  EXPECT_NE(refusal(rpc::ErrorKind::aborted, [&] { round.arrive("b"); }).find("trainer c died"),
            std::string::npos);
  round.arrive("b");
  EXPECT_TRUE(round.complete());
}

TEST(StepRound, AnEmptySeatOfTheDeadFailsEveryStepUntilItIsTaken) {
  StepRound round(2);
  round.join("a");
  round.join("b");
  EXPECT_TRUE(round.die("b").empty());
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(refusal(rpc::ErrorKind::aborted, [&] { round.arrive("a"); }).find("b died"), std::string::npos);
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
