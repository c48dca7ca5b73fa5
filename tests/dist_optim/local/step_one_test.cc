// Steps in parts: each parameter steps as soon as its gradient is ready.
#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_step_one_test {
namespace {

using namespace torch::optim;

at::Tensor values(at::IntArrayRef shape, double phase) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) + phase).reshape(shape);
}

const std::vector<std::vector<std::int64_t>> shapes{{4, 3}, {5}, {}, {2, 2, 2}};

struct Model {
  explicit Model(const OptimizerSpec& spec) : leaves(parameters, spec) {}
  static std::vector<Parameter> make() {
    std::vector<Parameter> made;
    for (const auto& shape : shapes) {
      const auto number = made.size();
      made.push_back(
          {"p" + std::to_string(number), values(shape, static_cast<double>(number)).requires_grad_()});
    }
    return made;
  }
  const std::vector<Parameter> parameters = make();
  ShadowLeaves leaves;
};

Gradients gradients(int step) {
  Gradients all;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    all[i] = values(shapes[i], 10.0 * step + static_cast<double>(i));
  return all;
}

void expect_equal(const Model& left, const Model& right) {
  for (std::size_t i = 0; i < shapes.size(); ++i)
    EXPECT_TRUE(torch::equal(left.parameters[i].tensor, right.parameters[i].tensor)) << i;
}

std::vector<OptimizerSpec> all_specs() {
  return {SGDOptions(0.1),
          SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01),
          AdamOptions(0.05).weight_decay(0.01).amsgrad(true),
          AdamWOptions(0.05),
          AdagradOptions(0.1).lr_decay(0.01),
          RMSpropOptions(0.05).centered(true).momentum(0.5),
          SparseAdamOptions(0.05),
          RowwiseAdagradOptions(0.05),
          AdadeltaOptions(1.0),
          AdamaxOptions(0.05),
          RpropOptions(0.05),
          OptimizerSpec(AdamOptions(0.05)).with_group("p1", {{"lr", 0.5}})};
}

// The oracle is one step with all gradients, which the tests of ShadowLeaves compare with LibTorch's.
TEST(StepOne, OfEachParameterEqualsOneStepOfAll) {
  for (const OptimizerSpec& spec : all_specs()) {
    SCOPED_TRACE(to_string(spec));
    Model whole(spec), parts(spec);
    for (int step = 0; step < 6; ++step) {
      const double rate = 0.1 / (step + 1);
      whole.leaves.set_learning_rate(rate);
      parts.leaves.set_learning_rate(rate);
      Gradients all = gradients(step);
      if (step % 3 == 1) all.erase(0);
      whole.leaves.step(all);
      for (std::size_t i = shapes.size(); i-- > 0;)  // in the order of a backward
        if (all.contains(i)) parts.leaves.step_one(i, all[i]);
      parts.leaves.end_round();
      expect_equal(whole, parts);
    }
    const OptimizerState left = whole.leaves.state(), right = parts.leaves.state();
    ASSERT_EQ(left.tensors.size(), right.tensors.size());
    for (const auto& [name, tensor] : left.tensors)
      EXPECT_TRUE(torch::equal(tensor, right.tensors.at(name))) << name;
  }
}

TEST(StepOne, ChangesThatParameterAloneAndKeepsNoGradient) {
  Model model(SGDOptions(0.1)), expected(SGDOptions(0.1));
  model.leaves.step_one(1, gradients(0)[1]);
  model.leaves.end_round();
  model.leaves.step({});
  expected.leaves.step({{1, gradients(0)[1]}});
  expect_equal(model, expected);
}

TEST(StepOne, WithAnUndefinedGradientDoesNotChangeTheParameter) {
  Model model(AdamOptions(0.1)), before(AdamOptions(0.1));
  model.leaves.step_one(0, {});
  refusal(rpc::ErrorKind::failed_precondition, [&] { model.leaves.step_one(0, gradients(0)[0]); });
  model.leaves.end_round();
  expect_equal(model, before);
  EXPECT_TRUE(model.leaves.state().tensors.empty());
}

TEST(StepOne, RefusesASecondStepInARoundAndMismatchedGradients) {
  Model model(AdamOptions(0.1)), expected(AdamOptions(0.1));
  model.leaves.step_one(1, gradients(0)[1]);
  refusal(rpc::ErrorKind::failed_precondition, [&] { model.leaves.step_one(1, gradients(0)[1]); }, "p1");
  refusal(rpc::ErrorKind::invalid_argument, [&] { model.leaves.step_one(0, gradients(0)[1]); }, "p0");
  refusal(rpc::ErrorKind::invalid_argument, [&] { model.leaves.step_one(9, gradients(0)[1]); }, "9");
  model.leaves.step_one(0, gradients(0)[0]);  // a refusal does not count
  model.leaves.end_round();
  model.leaves.step_one(1, gradients(1)[1]);
  model.leaves.end_round();
  expected.leaves.step({{0, gradients(0)[0]}, {1, gradients(0)[1]}});
  expected.leaves.step({{1, gradients(1)[1]}});
  expect_equal(model, expected);
}

TEST(StepOne, KeepsRatesStatesAndStoragesUntilTheRoundEnds) {
  Model model(AdamOptions(0.1));
  const OptimizerState state = model.leaves.state();
  model.leaves.step_one(0, gradients(0)[0]);
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { model.leaves.step(gradients(0)); }, [&] { model.leaves.set_learning_rate(0.5); },
           [&] { model.leaves.state(); }, [&] { model.leaves.set_state(state); },
           [&] { model.leaves.move_to({}); }}) {
    const auto message = refusal(rpc::ErrorKind::failed_precondition, call, "1 of 4");
    EXPECT_NE(message.find("end_round"), std::string::npos) << message;
  }
  model.leaves.end_round();
  model.leaves.set_learning_rate(0.5);
  EXPECT_EQ(model.leaves.learning_rate(), 0.5);
}

}  // namespace
}  // namespace weft::dist_optim::local_step_one_test
