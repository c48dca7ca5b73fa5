// Slices of a parameter that step separately equal LibTorch's optimizers over the whole parameter.
#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/dist_optim/local/slices.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/local/optimizer_case.h"
#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_slices_test {
namespace {

using namespace torch::optim;

struct Mlp : torch::nn::Module {
  Mlp() {
    at::NoGradGuard no_grad;
    double phase = 0;
    for (at::Tensor& parameter : parameters())
      parameter.copy_(at::sin(at::arange(parameter.numel()) * 0.7 + (phase += 1)).reshape(parameter.sizes()));
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(7, 13))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(13, 5))};
  at::Tensor loss(const at::Tensor& input) { return second(first(input).tanh()).square().sum(); }
};

at::Tensor input(int seed) { return at::cos(at::arange(21) * 0.3 + seed).reshape({3, 7}); }

// An MLP whose parameters and gradients are views of flat tensors, as in a bucket.
struct Bucket {
  Bucket() {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> flattened;
    for (const at::Tensor& parameter : model.parameters()) flattened.push_back(parameter.reshape({-1}));
    flat = at::cat(flattened);
    std::int64_t at = 0;
    for (at::Tensor& parameter : model.parameters()) {
      parameter.set_data(flat.slice(0, at, at + parameter.numel()).view(parameter.sizes()));
      at += parameter.numel();
    }
  }
  at::Tensor gradient(int seed) {
    model.zero_grad();
    model.loss(input(seed)).backward();
    std::vector<at::Tensor> flattened;
    for (const at::Tensor& parameter : model.parameters())
      flattened.push_back(parameter.grad().reshape({-1}));
    return at::cat(flattened);
  }
  Mlp model;
  at::Tensor flat;
};

std::vector<Case> all_cases() {
  return {make_case<SGD>(SGDOptions(0.1)),
          make_case<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01)),
          make_case<Adam>(AdamOptions(0.05).weight_decay(0.01).amsgrad(true)),
          make_case<AdamW>(AdamWOptions(0.05)),
          make_case<Adagrad>(AdagradOptions(0.1).lr_decay(0.01)),
          make_case<RMSprop>(RMSpropOptions(0.05).centered(true).momentum(0.5)),
          make_case<Adadelta>(AdadeltaOptions(1.0)),
          make_case<Adamax>(AdamaxOptions(0.05)),
          make_case<Rprop>(RpropOptions(0.05))};
}

// Each optimizer steps one slice, as one rank of ZeRO-1 does.
struct Rank {
  Rank(const Bucket& bucket, const OptimizerSpec& spec, std::int64_t begin, std::int64_t end)
      : slice(slice_of({"bucket", bucket.flat}, begin, end)), leaves({slice}, spec), begin(begin), end(end) {}
  void step(const at::Tensor& gradient) { leaves.step({{0, gradient.slice(0, begin, end)}}); }
  Parameter slice;
  ShadowLeaves leaves;
  std::int64_t begin, end;
};

TEST(Slices, ThatStepSeparatelyEqualLibtorchsOptimizerOverTheWhole) {
  for (const Case& test : all_cases()) {
    SCOPED_TRACE(to_string(test.spec));
    Mlp whole;
    auto reference = test.reference(whole.parameters());
    Bucket bucket;
    const std::int64_t size = bucket.flat.numel(), cut = 83;  // within a row of a weight
    Rank first(bucket, test.spec, 0, cut), second(bucket, test.spec, cut, size),
        none(bucket, test.spec, size, size);
    for (int step = 0; step < 10; ++step) {
      const at::Tensor gradient = bucket.gradient(step);
      reference->zero_grad();
      whole.loss(input(step)).backward();
      reference->step();
      for (Rank* rank : {&second, &first, &none}) rank->step(gradient);
    }
    const auto expected = whole.parameters(), found = bucket.model.parameters();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << i;
    for (const Rank* rank : {&first, &second})
      for (const auto& [name, tensor] : rank->leaves.state().tensors) {
        EXPECT_TRUE(name.starts_with(rank->slice.name + "/")) << name;
        EXPECT_EQ(tensor.numel(), tensor.dim() == 0 ? 1 : rank->end - rank->begin) << name;
      }
  }
}

TEST(Slices, ContinueWithTheStateOfOtherSlices) {
  for (const Case& test : all_cases()) {
    SCOPED_TRACE(to_string(test.spec));
    Bucket bucket, other;
    const std::int64_t size = bucket.flat.numel();
    Rank whole(bucket, test.spec, 0, size);
    Rank a(other, test.spec, 0, 50), b(other, test.spec, 50, 120), c(other, test.spec, 120, size);
    for (int step = 0; step < 3; ++step) {
      whole.step(bucket.gradient(step));
      const at::Tensor gradient = other.gradient(step);
      for (Rank* rank : {&a, &b, &c}) rank->step(gradient);
    }
    const std::vector<OptimizerState> states{a.leaves.state(), b.leaves.state(), c.leaves.state()};
    Rank left(other, test.spec, 0, 83), right(other, test.spec, 83, size);
    for (Rank* rank : {&left, &right}) rank->leaves.set_state(reslice(states, {rank->slice}));
    for (int step = 3; step < 6; ++step) {
      whole.step(bucket.gradient(step));
      const at::Tensor gradient = other.gradient(step);
      for (Rank* rank : {&left, &right}) rank->step(gradient);
    }
    EXPECT_TRUE(torch::equal(bucket.flat, other.flat));
    // Merges the states of all slices into one state, as an optimizer over the whole parameter has.
    const Parameter flat{"bucket", other.flat};
    const OptimizerState joined = reslice({left.leaves.state(), right.leaves.state()}, {flat});
    ShadowLeaves of_flat({flat}, test.spec);
    of_flat.set_state(joined);
    of_flat.step({{0, bucket.gradient(6)}});
    whole.step(bucket.gradient(6));
    EXPECT_TRUE(torch::equal(bucket.flat, other.flat));
  }
}

TEST(Slices, AreInTheParameterGroupOfTheirParameter) {
  const at::Tensor flat = at::zeros({4});
  const auto spec =
      OptimizerSpec(SGDOptions(1)).with_group("bucket", {{"lr", 3}}).with_group("buck", {{"lr", 5}});
  ShadowLeaves leaves({slice_of({"bucket", flat}, 1, 3)}, spec);
  leaves.step({{0, at::ones({2})}});
  EXPECT_TRUE(torch::equal(flat, at::tensor({0.F, -3.F, -3.F, 0.F})));
}

TEST(Slices, AreRefusedByOptimizersThatStepRows) {
  const Parameter slice = slice_of({"rows", at::zeros({4, 2})}, 0, 3);
  for (const OptimizerSpec& spec :
       {OptimizerSpec(SparseAdamOptions(0.1)), OptimizerSpec(RowwiseAdagradOptions(0.1))}) {
    const std::string message = refusal([&] { ShadowLeaves({slice}, spec); }, spec.name);
    EXPECT_NE(message.find("rows[0:3]"), std::string::npos) << message;
    refusal([&] { reslice({{spec.name, {}, {}}}, {slice}); }, spec.name);
  }
}

TEST(Slices, ThatDoNotExistAreRefused) {
  const Parameter whole{"p", at::zeros({4, 2})};
  refusal([&] { slice_of(whole, 3, 9); }, "p[3:9]");
  refusal([&] { slice_of(whole, -1, 2); });
  refusal([&] { slice_of(whole, 3, 2); });
  refusal([&] { slice_of({"p", whole.tensor.t()}, 0, 2); });
  refusal([&] { slice_of({"p", {}}, 0, 0); });
  refusal([&] { ShadowLeaves({slice_of(whole, 0, 5), slice_of(whole, 4, 8)}, SGDOptions(0.1)); },
          "share elements");
}

TEST(Slices, RefuseInconsistentStates) {
  Bucket bucket;
  const OptimizerSpec spec = AdamOptions(0.1);
  Rank a(bucket, spec, 0, 50), b(bucket, spec, 50, 100);
  const at::Tensor gradient = bucket.gradient(0);
  a.step(gradient);
  const Parameter both = slice_of({"bucket", bucket.flat}, 20, 70),
                  first = slice_of({"bucket", bucket.flat}, 10, 20),
                  second = slice_of({"bucket", bucket.flat}, 60, 70);
  const auto states = [&] { return std::vector{a.leaves.state(), b.leaves.state()}; };
  EXPECT_EQ(reslice(states(), {first}).tensors.size(), 3U);
  EXPECT_TRUE(reslice(states(), {second}).tensors.empty()) << "it has never stepped";
  refusal([&] { reslice(states(), {both}); }, "element 50");
  b.step(gradient);
  EXPECT_EQ(reslice(states(), {both}).tensors.size(), 3U);
  b.step(gradient);
  refusal([&] { reslice(states(), {both}); }, "1 and 2 times");
  b.leaves.set_learning_rate(0.5);
  refusal([&] { reslice(states(), {first}); }, "learning rates");
  Rank other(bucket, SGDOptions(0.1), 0, 50);
  refusal([&] { reslice({a.leaves.state(), other.leaves.state()}, {first}); });
  OptimizerState spoilt = a.leaves.state();
  spoilt.tensors["bucket[0:50]/exp_avg"] = at::zeros({49});
  refusal([&] { reslice({spoilt}, {first}); });
}

}  // namespace
}  // namespace weft::dist_optim::local_slices_test
