// The two phases of a step of OwnedParameters: prepare, then commit or abort.
#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/error.h>

#include <thread>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "tests/dist_optim/local/owned_parameters_support.h"
#include "tests/dist_optim/refusal.h"
#include "tests/support/cluster.h"
#include "tests/support/fake_accelerator.h"

namespace weft::dist_optim::local_parameter_steps_test {
namespace {

using torch::optim::SGDOptions;

const PassKey pass_1{0, 1}, pass_2{0, 2};
const StepDecision apply{}, skip{StepDecision::Action::skip, 1, 0};

// One parameter. Every gradient and the rate are 1, so that a step subtracts 1.
class ParameterSteps : public testing::Test {
 protected:
  at::Tensor weight = at::zeros({2}, at::kDouble).requires_grad_();
  OwnedParameters owned{std::vector<Parameter>{{"weight", weight}}};
  std::exception_ptr failed;
  OwnedParameters::Version version = 0;
  int done = 0;

  void join(const std::string& trainer, StepMode mode) {
    owned.register_trainer(trainer, SGDOptions(1), mode);
  }
  void open(const std::string& trainer, PassKey pass) {
    owned.admit(trainer, pass, [](std::exception_ptr error) { EXPECT_TRUE(error == nullptr); });
  }
  PassGradients gradient(PassKey pass, double value = 1) {
    return {pass, {{0, at::full({2}, value, at::kDouble)}}};
  }
  StepPart prepare(const std::string& trainer, std::uint64_t number, PassKey pass, double value = 1,
                   const StepOptions& options = {}) {
    return owned.prepare(trainer, number, {gradient(pass, value)}, options, 1);
  }
  void commit(const std::string& trainer, std::uint64_t number, const StepDecision& decision = apply) {
    owned.commit(trainer, number, decision, [this](std::exception_ptr error, OwnedParameters::Version after) {
      ++done;
      failed = error;
      version = after;
    });
  }
  void expect_weight(double value) {
    EXPECT_TRUE(torch::equal(weight.detach(), at::full({2}, value, at::kDouble))) << weight;
  }
};

TEST_F(ParameterSteps, AnAbortedPassMayStepAgain) {
  join("a", synchronous);
  open("a", pass_1);
  prepare("a", 1, pass_1);
  owned.abort("a", 1);
  owned.abort("a", 1);  // no effect
  refusal(rpc::ErrorKind::failed_precondition, [&] { commit("a", 1); });
  EXPECT_EQ(done, 0);
  prepare("a", 2, pass_1);
  commit("a", 2);
  EXPECT_EQ(done, 1);
  expect_weight(-1);
}

TEST_F(ParameterSteps, APassBelongsToOneStepAndStepsOnce) {
  join("a", bounded_staleness(5));
  open("a", pass_1);
  prepare("a", 1, pass_1);
  refusal(rpc::ErrorKind::failed_precondition, [&] { prepare("a", 2, pass_1); });
  commit("a", 1);
  refusal(rpc::ErrorKind::failed_precondition, [&] { prepare("a", 3, pass_1); });
  owned.admit("a", pass_1, [](std::exception_ptr error) { EXPECT_TRUE(error != nullptr); });
  owned.release(pass_1);  // the end of the pass: the owner forgets it
  open("a", pass_1);
  expect_weight(-1);
}

TEST_F(ParameterSteps, APassReleasedDuringItsStepIsKeptUntilTheStepEnds) {
  join("a", bounded_staleness(0));
  open("a", pass_1);
  prepare("a", 1, pass_1);
  owned.release(pass_1);
  EXPECT_EQ(owned.stats().open_passes, 1U);
  commit("a", 1);
  EXPECT_TRUE(failed == nullptr);
  expect_weight(-1);
  EXPECT_EQ(owned.stats().open_passes, 0U);

  open("a", pass_2);
  prepare("a", 2, pass_2);
  owned.release(pass_2);
  owned.abort("a", 2);
  EXPECT_EQ(owned.stats().open_passes, 0U);
  expect_weight(-1);
}

// Otherwise the second pass would be too old after the step of the first one, and its step would be refused.
TEST_F(ParameterSteps, TheTrainersNextPassWaitsForAPreparedStep) {
  for (StepMode mode : {StepMode(synchronous), bounded_staleness(0)}) {
    for (bool give_up : {false, true}) {
      OwnedParameters own{std::vector<Parameter>{{"weight", weight}}};
      own.register_trainer("a", SGDOptions(1), mode);
      own.admit("a", pass_1, [](std::exception_ptr) {});
      own.prepare("a", 1, {gradient(pass_1)}, {}, 1);
      bool admitted = false;
      own.admit("a", pass_2, [&](std::exception_ptr error) { admitted = error == nullptr; });
      EXPECT_FALSE(admitted);
      std::exception_ptr refused;
      if (give_up) {
        own.abort("a", 1);
      } else {
        own.commit("a", 1, apply,
                   [&](std::exception_ptr error, OwnedParameters::Version) { refused = error; });
      }
      EXPECT_TRUE(admitted) << to_string(mode);
      EXPECT_TRUE(refused == nullptr) << to_string(mode);
      if (give_up) own.release(pass_1);
      own.prepare("a", 2, {gradient(pass_2)}, {}, 1);
      own.commit("a", 2, apply, [&](std::exception_ptr error, OwnedParameters::Version) { refused = error; });
      EXPECT_TRUE(refused == nullptr) << to_string(mode);
    }
  }
}

// A reader delays the step. The pass ends before the step is made.
TEST_F(ParameterSteps, APassReleasedWhileItsStepWaitsForReadersIsStepped) {
  join("a", bounded_staleness(0));
  open("a", pass_1);
  prepare("a", 1, pass_1);
  std::thread stepping;
  {
    const auto reading = owned.read_newest();
    stepping = std::thread([&] { commit("a", 1); });
    test::eventually("the step is running", [&] {
      try {
        prepare("a", 2, pass_1);
      } catch (const rpc::Error& error) {
        return std::string(error.what()).find("has stepped these parameters already") != std::string::npos;
      }
      return false;
    });
    owned.release(pass_1);
    EXPECT_EQ(done, 0);
  }
  stepping.join();
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(failed == nullptr);
  EXPECT_EQ(owned.stats().open_passes, 0U);
  expect_weight(-1);
}

TEST_F(ParameterSteps, APreparedStepEndsWithItsTrainer) {
  join("a", bounded_staleness(0));
  join("b", bounded_staleness(0));
  open("a", pass_1);
  prepare("a", 1, pass_1);
  bool admitted = false;
  owned.admit("b", pass_2, [&](std::exception_ptr error) { admitted = error == nullptr; });
  EXPECT_FALSE(admitted);
  unregister_trainer(owned, "a", true);
  EXPECT_TRUE(admitted);
  refusal(rpc::ErrorKind::failed_precondition, [&] { commit("a", 1); });
  expect_weight(0);
}

TEST_F(ParameterSteps, ARoundWaitsForCommitsAndTakesOneStepATrainer) {
  join("a", synchronous(2));
  join("b", synchronous(2));
  open("a", pass_1);
  open("b", pass_2);
  prepare("a", 1, pass_1);
  prepare("b", 1, pass_2);
  refusal(rpc::ErrorKind::failed_precondition, [&] { owned.prepare("a", 2, {gradient({0, 9})}, {}, 1); });
  commit("a", 1);
  EXPECT_EQ(done, 0);
  commit("b", 1, skip);  // it has arrived, without a gradient
  EXPECT_EQ(done, 2);
  expect_weight(-1);
}

TEST_F(ParameterSteps, ADeathBetweenPrepareAndCommitFailsTheCommit) {
  join("a", synchronous(2));
  join("b", synchronous(2));
  open("a", pass_1);
  prepare("a", 1, pass_1);
  unregister_trainer(owned, "b", true);
  commit("a", 1);
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(failed != nullptr);
  expect_weight(0);
  join("c", synchronous(2));  // takes the seat; the pass of the failed step may step again
  prepare("a", 2, pass_1);
  commit("a", 2);
  open("c", pass_2);
  prepare("c", 1, pass_2);
  commit("c", 1);
  EXPECT_TRUE(failed == nullptr);
  expect_weight(-2);
}

// One stream computes the gradient, the step runs on a second one, and a third one reads.
TEST(HostOnAnAccelerator, AStepWaitsForItsGradientsOnTheStreamsOfTheDevice) {
  auto& accelerator = test::FakeAccelerator::install();
  const c10::Device device = accelerator.device(0);
  const auto on = [&](c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); };
  const at::Tensor weight = at::zeros({2}).to(device).requires_grad_();
  OwnedParameters owned{std::vector<Parameter>{{"weight", weight}}};
  owned.register_trainer("a", SGDOptions(1), {StepMode::Kind::bounded_staleness, 1});
  owned.admit("a", pass_1, [](std::exception_ptr error) { EXPECT_TRUE(error == nullptr); });
  {
    const c10::StreamGuard maker(on(2));
    const at::Tensor gradient = at::empty({2}, at::TensorOptions(device));
    accelerator.fill_later(gradient, 3);
    owned.prepare("a", 1, {{pass_1, {{0, gradient}}}}, {}, 1);
    EXPECT_GT(accelerator.pending(on(2)), 0U) << "preparing waits for nothing";
  }
  std::exception_ptr failed;
  {
    const c10::StreamGuard stepper(on(3));
    owned.commit("a", 1, apply, [&](std::exception_ptr error, OwnedParameters::Version) { failed = error; });
  }
  EXPECT_TRUE(failed == nullptr);
  const c10::StreamGuard reader(on(4));
  const auto reading = owned.read_newest();
  EXPECT_TRUE(weight.detach().cpu().equal(at::full({2}, -3.)));
}

// Two trainers compute their gradients and commit, each on its own stream. A third trainer leaves on a third
// stream, where the round is closed.
TEST(HostOnAnAccelerator, ARoundWaitsForTheGradientsOfEveryTrainer) {
  auto& accelerator = test::FakeAccelerator::install();
  const c10::Device device = accelerator.device(0);
  const auto on = [&](c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); };
  const at::Tensor weight = at::zeros({2}).to(device).requires_grad_();
  OwnedParameters owned{std::vector<Parameter>{{"weight", weight}}};
  for (const std::string trainer : {"a", "b", "c"})
    owned.register_trainer(trainer, SGDOptions(1), synchronous(3), trainer);
  int done = 0;
  const auto commit = [&](const std::string& trainer, PassKey pass, c10::StreamId stream, double value) {
    owned.admit(trainer, pass, [](std::exception_ptr error) { EXPECT_TRUE(error == nullptr); });
    const c10::StreamGuard own(on(stream));
    const at::Tensor gradient = at::empty({2}, at::TensorOptions(device));
    accelerator.fill_later(gradient, value);
    owned.prepare(trainer, 1, {{pass, {{0, gradient}}}}, {}, 1);
    owned.commit(trainer, 1, apply, [&](std::exception_ptr error, OwnedParameters::Version) {
      EXPECT_TRUE(error == nullptr);
      ++done;
    });
    EXPECT_GT(accelerator.pending(on(stream)), 0U) << "trainer " << trainer << " waits for nothing";
  };
  commit("a", pass_1, 2, 3);
  commit("b", pass_2, 3, 4);
  EXPECT_EQ(done, 0);
  {
    const c10::StreamGuard closer(on(4));
    unregister_trainer(owned, "c", false);
  }
  EXPECT_EQ(done, 2);
  const c10::StreamGuard reader(on(5));
  const auto reading = owned.read_newest();
  EXPECT_TRUE(weight.detach().cpu().equal(at::full({2}, -7.))) << weight.detach().cpu();
}

}  // namespace
}  // namespace weft::dist_optim::local_parameter_steps_test
