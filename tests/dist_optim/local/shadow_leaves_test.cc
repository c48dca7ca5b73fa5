#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/local/optimizer_case.h"
#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_shadow_leaves_test {
namespace {

using namespace torch::optim;

const bool one_thread = [] { return at::set_num_threads(1), true; }();

std::vector<Parameter> some_parameters(at::ScalarType type = at::kDouble) {
  torch::manual_seed(1);
  std::vector<Parameter> parameters;
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{{4, 3}, {5}, {}}) {
    parameters.push_back(
        {"p" + std::to_string(parameters.size()), torch::randn(shape, type).requires_grad_()});
  }
  return parameters;
}

std::vector<Parameter> copies(const std::vector<Parameter>& parameters) {
  std::vector<Parameter> result;
  for (const Parameter& one : parameters)
    result.push_back({one.name, one.tensor.detach().clone().requires_grad_()});
  return result;
}

std::vector<at::Tensor> tensors(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : parameters) result.push_back(parameter.tensor);
  return result;
}

Gradients random_gradients(const std::vector<Parameter>& parameters) {
  Gradients gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    gradients[i] = torch::randn_like(parameters[i].tensor).detach();
  return gradients;
}

void expect_equal(const std::vector<Parameter>& left, const std::vector<Parameter>& right) {
  for (std::size_t i = 0; i < left.size(); ++i)
    EXPECT_TRUE(torch::equal(left[i].tensor, right[i].tensor)) << i;
}

std::vector<Case> all_cases() {
  return {make_case<SGD>(SGDOptions(0.1)),
          make_case<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01)),
          make_case<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)),
          make_case<Adam>(AdamOptions(0.05)),
          make_case<Adam>(AdamOptions(0.05).weight_decay(0.01).amsgrad(true)),
          make_case<AdamW>(AdamWOptions(0.05).amsgrad(true)),
          make_case<Adagrad>(AdagradOptions(0.1).lr_decay(0.01).initial_accumulator_value(0.1)),
          make_case<RMSprop>(RMSpropOptions(0.05).centered(true).momentum(0.5))};
}

// The oracle is LibTorch's own optimizer on a copy of the parameters. Some steps have no gradient for a
// parameter.
TEST(ShadowLeaves, StepLikeLibtorchsOptimizers) {
  for (const Case& test : all_cases()) {
    SCOPED_TRACE(to_string(test.spec));
    auto parameters = some_parameters(), expected = copies(parameters);
    ShadowLeaves leaves(parameters, test.spec);
    auto reference = test.reference(tensors(expected));
    for (int i = 0; i < 20; ++i) {
      Gradients gradients = random_gradients(parameters);
      if (i % 3 == 1) gradients.erase(static_cast<std::size_t>(i % 2));
      if (i % 3 == 2) gradients[2] = at::Tensor();
      Gradients before;
      for (const auto& [index, gradient] : gradients) {
        if (gradient.defined()) before[index] = gradient.clone();
      }
      reference->zero_grad();
      for (const auto& [index, gradient] : before) expected[index].tensor.mutable_grad() = gradient.clone();
      reference->step();
      leaves.step(gradients);
      for (const auto& [index, gradient] : before) EXPECT_TRUE(torch::equal(gradients[index], gradient));
    }
    expect_equal(parameters, expected);
  }
}

TEST(ShadowLeaves, ChangeNeitherVersionCounterNorGrad) {
  auto parameters = some_parameters();
  parameters[0].tensor.mutable_grad() = torch::ones_like(parameters[0].tensor);
  auto before = copies(parameters);
  ShadowLeaves leaves(parameters, SGDOptions(0.1));
  auto version = parameters[0].tensor._version();
  leaves.step(random_gradients(parameters));
  EXPECT_EQ(parameters[0].tensor._version(), version);
  EXPECT_TRUE(torch::equal(parameters[0].tensor.grad(), torch::ones_like(parameters[0].tensor)));
  EXPECT_FALSE(torch::equal(parameters[0].tensor, before[0].tensor)) << "the storage is shared";
}

TEST(ShadowLeaves, KeepAGradientForOneStepOnly) {
  auto parameters = some_parameters();
  ShadowLeaves leaves(parameters, SGDOptions(0.1));
  leaves.step(random_gradients(parameters));
  auto before = copies(parameters);
  leaves.step({});
  expect_equal(parameters, before);
}

TEST(ShadowLeaves, AcceptGradientsThatHaveAGraph) {
  auto parameters = some_parameters();
  ShadowLeaves leaves(parameters, SGDOptions(0.1).momentum(0.9));
  auto gradient = torch::ones_like(parameters[1].tensor).requires_grad_() * 2;
  leaves.step({{1, gradient}});
  leaves.step({{1, gradient}});
  EXPECT_TRUE(gradient.requires_grad());
}

TEST(ShadowLeaves, RefuseMismatchedGradientsAndApplyNothing) {
  auto parameters = some_parameters();
  auto before = copies(parameters);
  ShadowLeaves leaves(parameters, AdamOptions(0.1));
  const auto refused = [&](std::size_t index, const at::Tensor& gradient, const std::string& words) {
    Gradients gradients = random_gradients(parameters);
    gradients[index] = gradient;
    return refusal([&] { leaves.step(gradients); }, words);
  };
  const std::string message = refused(1, torch::zeros({6}, at::kDouble), "p1");
  EXPECT_NE(message.find("[6]"), std::string::npos) << message;
  refused(1, torch::zeros({5}, at::kFloat), "dtype");
  refused(1, torch::zeros({5}, at::TensorOptions().dtype(at::kDouble).device(at::kMeta)), "device");
  refused(1, torch::zeros({5}, at::kDouble).to_sparse(), "layout");
  refused(7, torch::zeros({5}, at::kDouble), "7");
  expect_equal(parameters, before);
}

TEST(ShadowLeaves, AcceptSparseGradientsWhereLibtorchDoes) {
  auto sparse = [] {
    return torch::sparse_coo_tensor(torch::tensor({{0, 2, 0}}), torch::randn({3, 3}, at::kDouble), {4, 3});
  };
  for (const Case& test : {make_case<SGD>(SGDOptions(0.1)), make_case<SGD>(SGDOptions(0.1).momentum(0.9)),
                           make_case<Adagrad>(AdagradOptions(0.1))}) {
    SCOPED_TRACE(to_string(test.spec));
    ASSERT_TRUE(test.spec.takes_sparse_gradients());
    auto parameters = some_parameters(), expected = copies(parameters);
    ShadowLeaves leaves(parameters, test.spec);
    auto reference = test.reference(tensors(expected));
    for (int i = 0; i < 20; ++i) {
      auto gradient = sparse();
      expected[0].tensor.mutable_grad() = gradient;
      reference->step();
      leaves.step({{0, gradient}});
    }
    EXPECT_TRUE(torch::allclose(parameters[0].tensor, expected[0].tensor, 0, 1e-12));
  }
  // ShadowLeaves refuses the gradients that LibTorch refuses: the table in OptimizerSpec is LibTorch's
  // behaviour.
  for (const Case& test :
       {make_case<SGD>(SGDOptions(0.1).weight_decay(0.1)), make_case<Adam>(AdamOptions(0.1)),
        make_case<AdamW>(AdamWOptions(0.1)), make_case<RMSprop>(RMSpropOptions(0.1)),
        make_case<Adagrad>(AdagradOptions(0.1).weight_decay(0.1))}) {
    SCOPED_TRACE(to_string(test.spec));
    EXPECT_FALSE(test.spec.takes_sparse_gradients());
    auto parameters = some_parameters();
    auto reference = test.reference(tensors(parameters));
    parameters[0].tensor.mutable_grad() = sparse();
    EXPECT_THROW(reference->step(), c10::Error);
  }
}

TEST(ShadowLeaves, RefuseToMixSparseAndDenseInOneMomentum) {
  auto parameters = some_parameters();
  ShadowLeaves leaves(parameters, SGDOptions(0.1).momentum(0.9));
  leaves.step(random_gradients(parameters));
  auto before = copies(parameters);
  Gradients gradients = random_gradients(parameters);
  gradients[1] = gradients[1].to_sparse();
  refusal([&] { leaves.step(gradients); }, "p1");
  expect_equal(parameters, before);
}

TEST(ShadowLeaves, KeepTheirStateWhenTheyMove) {
  for (const Case& test : all_cases()) {
    SCOPED_TRACE(to_string(test.spec));
    auto parameters = some_parameters(), expected = copies(parameters);
    ShadowLeaves moving(parameters, test.spec), staying(expected, test.spec);
    std::vector<at::Tensor> place;
    for (int i = 0; i < 5; ++i) {
      auto gradients = random_gradients(parameters);
      staying.step(gradients);
      auto from = i == 0 ? tensors(parameters) : place;
      place.clear();
      for (const at::Tensor& tensor : from) place.push_back(tensor.detach().clone());
      moving.move_to(place);
      moving.step(gradients);
    }
    for (std::size_t i = 0; i < place.size(); ++i) EXPECT_TRUE(torch::equal(place[i], expected[i].tensor));
  }
}

TEST(ShadowLeaves, ChangeTheirLearningRate) {
  auto parameters = some_parameters(), before = copies(parameters);
  ShadowLeaves leaves(parameters, SGDOptions(0.1));
  leaves.set_learning_rate(0);
  EXPECT_EQ(leaves.learning_rate(), 0);
  leaves.step(random_gradients(parameters));
  expect_equal(parameters, before);
  refusal([&] { leaves.set_learning_rate(-1); });
  refusal([&] { leaves.set_learning_rate(std::numeric_limits<double>::infinity()); });
}

struct Tied : torch::nn::Module {
  torch::nn::Linear one{register_module("one", torch::nn::Linear(2, 2))};
  at::Tensor again = register_parameter("again", one->weight);
  at::Tensor frozen = register_parameter("frozen", torch::zeros({2}), /*requires_grad=*/false);
};

TEST(Parameters, OfAModuleAreListedOnceAndByName) {
  Tied module;
  auto parameters = parameters_of(module);
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].name, "again");
  EXPECT_EQ(parameters[1].name, "one.bias");
}

TEST(Parameters, ThatAreNoLeavesOrShareElementsAreRefused) {
  auto leaf = torch::zeros({4}).requires_grad_();
  check_parameters({{"a", leaf}});
  refusal([&] { check_parameters({{"a", leaf}, {"b", leaf}}); }, "a and b");
  auto flat = torch::zeros({8});
  auto part = [&](int from, int to) { return flat.slice(0, from, to).detach().requires_grad_(); };
  check_parameters({{"a", part(0, 4)}, {"b", part(4, 8)}});
  refusal([&] { check_parameters({{"a", part(0, 5)}, {"b", part(4, 8)}}); });
  refusal([&] { check_parameters({{"a", leaf * 2}}); });
  refusal([&] { check_parameters({{"a", at::Tensor()}}); });
}

TEST(Gradients, AreSummedWithoutTouchingTheAddends) {
  auto dense = torch::ones({2, 2}), other = torch::ones({2, 2});
  Gradients sum;
  add_gradients(sum, {{0, dense}, {1, dense.to_sparse()}, {2, at::Tensor()}});
  add_gradients(sum, {{0, other}, {1, other}});
  add_gradients(sum, {{0, other.to_sparse()}, {1, other.to_sparse()}});
  EXPECT_EQ(sum.size(), 2u);
  for (std::size_t i : {0, 1}) EXPECT_TRUE(torch::equal(sum.at(i), torch::full({2, 2}, 3.0)));
  EXPECT_TRUE(torch::equal(dense, torch::ones({2, 2})));
  EXPECT_TRUE(torch::equal(other, torch::ones({2, 2})));
}

}  // namespace
}  // namespace weft::dist_optim::local_shadow_leaves_test
