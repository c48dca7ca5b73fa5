// Passes that name the version that they read, as the stages of a pipeline do. Every gradient is compared
// with that of a copy of the model at this version.
#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/error.h>

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_weight_stashing_test {
namespace {

struct Layer : torch::nn::Module {
  Layer() {
    at::NoGradGuard no_grad;
    to(at::kDouble);
    double phase = 0;
    for (at::Tensor& parameter : parameters())
      parameter.copy_(
          at::sin(at::arange(parameter.numel(), at::kDouble) + (phase += 1)).reshape(parameter.sizes()));
  }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(3, 4))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(4, 2))};
  at::Tensor loss(int microbatch) {
    return second(first(at::cos(at::arange(6, at::kDouble) + microbatch).reshape({2, 3})).tanh())
        .square()
        .sum();
  }
};

Gradients gradients_of(const at::Tensor& loss, const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> leaves;
  for (const Parameter& parameter : parameters) leaves.push_back(parameter.tensor);
  Gradients gradients;
  for (const at::Tensor& gradient : torch::autograd::grad({loss}, leaves))
    gradients[gradients.size()] = gradient;
  return gradients;
}

PassKey pass_of(int microbatch) { return {1, static_cast<std::uint64_t>(microbatch)}; }

// One stage of a pipeline, and a copy of its parameters at each version.
struct Stage {
  explicit Stage(StepMode mode) {
    owned.register_trainer("driver", torch::optim::SGDOptions(0.125), mode);
    keep_copy();
  }
  void keep_copy() {
    at::NoGradGuard no_grad;
    copies.push_back(std::make_unique<Layer>());
    const auto from = layer->parameters();
    auto to = copies.back()->parameters();
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }

  std::exception_ptr admit(int microbatch, std::optional<std::uint64_t> version) {
    bool done = false;
    std::exception_ptr error;
    owned.admit(
        "driver", pass_of(microbatch),
        [&](const std::exception_ptr& refused) {
          done = true;
          error = refused;
        },
        version);
    EXPECT_TRUE(done) << "it waits";
    return error;
  }
  void forward(int microbatch, std::optional<std::uint64_t> version = {}) {
    EXPECT_TRUE(admit(microbatch, version) == nullptr) << microbatch;
    const auto reading = owned.read(pass_of(microbatch));
    losses[microbatch] = layer->loss(microbatch);
  }
  // The gradient must be that of this version.
  void backward(int microbatch, std::size_t version) {
    {
      const auto reading = owned.read(pass_of(microbatch));
      gradients[microbatch] = gradients_of(losses[microbatch], owned.parameters());
    }
    const auto expected =
        gradients_of(copies.at(version)->loss(microbatch), parameters_of(*copies.at(version)));
    for (const auto& [index, gradient] : expected)
      EXPECT_TRUE(torch::equal(gradient, gradients[microbatch].at(index)))
          << "microbatch " << microbatch << ", version " << version << ", parameter " << index;
  }
  void step(const std::vector<int>& microbatches) {
    std::vector<PassGradients> passes;
    for (const int microbatch : microbatches) passes.push_back({pass_of(microbatch), gradients[microbatch]});
    bool done = false;
    owned.step("driver", std::move(passes), [&](const std::exception_ptr& error, std::uint64_t version) {
      done = true;
      EXPECT_TRUE(error == nullptr);
      EXPECT_EQ(version, copies.size());
    });
    EXPECT_TRUE(done);
    keep_copy();
  }

  std::shared_ptr<Layer> layer = std::make_shared<Layer>();
  OwnedParameters owned{parameters_of(*layer)};
  std::vector<std::unique_ptr<Layer>> copies;
  std::map<int, at::Tensor> losses;
  std::map<int, Gradients> gradients;
};

// PipeDream's 1F1B with three microbatches in flight: each microbatch steps alone, and its backward reads the
// version of its forward.
TEST(WeightStashing, AMicrobatchReadsOneVersionInForwardAndBackward) {
  Stage stage(bounded_staleness(2));
  for (int i = 0; i < 3; ++i) stage.forward(i);
  for (int i = 0; i < 8; ++i) {
    stage.backward(i, static_cast<std::size_t>(std::max(0, i - 2)));
    stage.step({i});
    stage.forward(i + 3);
    EXPECT_EQ(stage.owned.stats().live_versions, static_cast<std::size_t>(std::min(i + 2, 3)));
  }
  EXPECT_EQ(stage.owned.stats().max_staleness(), 2U);
}

// PipeDream-2BW with two microbatches per batch: all microbatches of a batch read the version of the previous
// batch, although the previous batch steps between their forwards.
TEST(WeightStashing, TheMicrobatchesOfABatchReadTheSameVersion) {
  Stage stage(bounded_staleness(1));
  stage.forward(0, 0);
  stage.forward(1, 0);
  for (int batch = 0; batch < 6; ++batch) {
    const auto read = static_cast<std::size_t>(std::max(0, batch - 1));
    const int first = 2 * batch;
    stage.backward(first, read);
    stage.forward(first + 2, batch);  // the next batch, before this one has stepped
    stage.backward(first + 1, read);
    stage.step({first, first + 1});
    stage.forward(first + 3, batch);  // an older version than the newest now
    EXPECT_EQ(stage.owned.stats().live_versions, 2U);
  }
  EXPECT_EQ(stage.owned.stats().staleness, (std::map<std::uint64_t, std::uint64_t>{{0, 1}, {1, 5}}));
}

TEST(WeightStashing, RowsOfAnEmbeddingKeepNoVersions) {
  OwnedParameters rows([](const OptimizerSpec&) { return std::unique_ptr<StepTarget>(); });
  std::exception_ptr error;
  rows.admit("driver", pass_of(0), [&](const std::exception_ptr& refused) { error = refused; }, 0);
  ASSERT_TRUE(error != nullptr);
  refusal(rpc::ErrorKind::failed_precondition, [&] { std::rethrow_exception(error); });
}

}  // namespace
}  // namespace weft::dist_optim::local_weight_stashing_test
