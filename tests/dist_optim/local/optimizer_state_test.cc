// The state of an optimizer as tensors: it is saved and restored, and other states are refused.
#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_optimizer_state_test {
namespace {

using namespace torch::optim;

at::Tensor numbers(double phase) { return at::sin(at::arange(6, at::kDouble) + phase).reshape({2, 3}); }

struct Trained {
  explicit Trained(const OptimizerSpec& spec)
      : weights{numbers(1).requires_grad_(), numbers(2).requires_grad_()},
        leaves({{"a", weights[0]}, {"b.weight", weights[1]}}, spec) {}
  void step(int t) { leaves.step({{0, numbers(t)}, {1, numbers(t + 0.5)}}); }
  std::vector<at::Tensor> weights;
  ShadowLeaves leaves;
};

TEST(OptimizerState, OfEveryOptimizerIsSavedAndRestored) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec(SGDOptions(0.1)), OptimizerSpec(SGDOptions(0.1).momentum(0.9)),
        OptimizerSpec(AdamOptions(0.1).amsgrad(true)), OptimizerSpec(AdamWOptions(0.1)),
        OptimizerSpec(AdagradOptions(0.1).lr_decay(0.1)),
        OptimizerSpec(RMSpropOptions(0.1).momentum(0.9).centered(true)),
        OptimizerSpec(SparseAdamOptions(0.1)), OptimizerSpec(RowwiseAdagradOptions(0.1)),
        OptimizerSpec(AdadeltaOptions(0.5)), OptimizerSpec(AdamaxOptions(0.1)),
        OptimizerSpec(RpropOptions(0.1)),
        OptimizerSpec(SGDOptions(0.1).momentum(0.9)).with_group("b", {{"momentum", 0.5}, {"lr", 0.01}})}) {
    Trained one(spec), other(spec);
    for (int t = 0; t < 3; ++t) one.step(t);
    const OptimizerState state = one.leaves.state();
    one.step(3);  // the saved state is a copy
    Trained again(spec);
    again.leaves.set_state(state);
    for (int t = 0; t < 3; ++t) other.step(t);
    for (int i = 0; i < 2; ++i) again.weights[i].detach().copy_(other.weights[i].detach());
    again.step(3);
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(torch::equal(one.weights[i], again.weights[i])) << to_string(spec);
  }
}

TEST(OptimizerState, OfAnotherOptimizerIsRefusedAndChangesNothing) {
  Trained one(AdamOptions(0.1));
  one.step(0);
  const OptimizerState good = one.leaves.state();
  EXPECT_EQ(good.tensors.size(), 6U);  // step and two moments of two parameters
  const auto refuse = [&](const std::function<void(OptimizerState&)>& spoil) {
    OptimizerState state = good;
    spoil(state);
    refusal([&] { one.leaves.set_state(state); });
  };
  refuse([](auto& state) { state.optimizer = "SGD"; });
  refuse([](auto& state) { state.tensors.erase("a/exp_avg"); });
  refuse([](auto& state) { state.tensors["a/exp_avg"] = at::zeros({3, 2}, at::kDouble); });
  refuse([](auto& state) { state.tensors["a/exp_avg"] = at::zeros({2, 3}, at::kFloat); });
  refuse([](auto& state) { state.tensors["a/exp_avg"] = at::Tensor(); });
  refuse([](auto& state) { state.tensors["a/step"] = at::ones({2}, at::kLong); });
  refuse([](auto& state) { state.tensors["a/step"] = at::full({}, -1, at::kLong); });
  refuse([](auto& state) { state.tensors["c/step"] = at::ones({}, at::kLong); });
  refuse([](auto& state) { state.learning_rates[""] = -1; });
  refuse([](auto& state) { state.learning_rates["group"] = 0.1; });
  Trained other(AdamOptions(0.1));
  other.step(0);
  one.step(1);
  other.step(1);
  EXPECT_TRUE(torch::equal(one.weights[0], other.weights[0]));
}

TEST(ParameterGroups, TheLongestPrefixAtADotCounts) {
  const OptimizerSpec spec =
      OptimizerSpec(SGDOptions(0.1)).with_group("conv", {{"lr", 1}}).with_group("conv.bias", {{"lr", 2}});
  EXPECT_EQ(spec.group_of("conv.weight"), "conv");
  EXPECT_EQ(spec.group_of("conv.bias"), "conv.bias");
  EXPECT_EQ(spec.group_of("conv2.bias"), "");
  EXPECT_EQ(spec.by_group().at("conv").options.at("lr"), 1);
  EXPECT_FALSE(spec == OptimizerSpec(SGDOptions(0.1)));
  EXPECT_THROW(spec.with_group("conv", {}).by_group(), rpc::Error);
  EXPECT_THROW(spec.with_group("", {}).by_group(), rpc::Error);
}

}  // namespace
}  // namespace weft::dist_optim::local_optimizer_state_test
