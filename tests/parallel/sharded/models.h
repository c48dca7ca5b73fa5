// The model of the tests of sharded training, and the values that they compare.
#pragma once

#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/parallel/sharded/checkpoint/states.h"

namespace weft::sharded::testing {

using collectives::DeviceMesh;
using collectives::testing::Backend;
using collectives::testing::on_ranks;
using data_parallel::testing::Batch;
using data_parallel::testing::expect_close;
using data_parallel::testing::values_of;
using test::expect_error;

// One layer of the model, an entry of its Sequential. Its bias may be frozen.
struct Layer : torch::nn::Module {
  explicit Layer(std::int64_t width) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    linear = register_module("linear", torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(linear(norm(x))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

// A head that may leave out one of its layers.
struct Head : torch::nn::Module {
  explicit Head(std::int64_t width) {
    used = register_module("used", torch::nn::Linear(width, 3));
    extra = register_module("extra", torch::nn::Linear(width, 3));
  }
  at::Tensor forward(const at::Tensor& x, bool with_extra) {
    return with_extra ? used(x) + extra(x) : used(x);
  }
  torch::nn::Linear used{nullptr}, extra{nullptr};
};

struct Model : torch::nn::Module {
  static constexpr std::int64_t width = 5;

  explicit Model(int layers = 3, at::ScalarType dtype = at::kDouble) {
    static std::mutex mutex;  // the ranks share the process's generator
    std::lock_guard lock(mutex);
    torch::manual_seed(1);
    stem = register_module("stem", torch::nn::Linear(5, width));
    for (int i = 0; i < layers; ++i) this->layers->push_back(std::make_shared<Layer>(width));
    register_module("layers", this->layers);
    head = register_module("head", std::make_shared<Block<Head>>(width));
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x, bool with_extra = true) {
    return head->forward(layers->forward(torch::relu(stem(x))), with_extra);
  }
  torch::nn::Linear stem{nullptr};
  torch::nn::Sequential layers;
  std::shared_ptr<Block<Head>> head;
};

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// The loss of this rank's part of the batch of a step.
template <class Module>
at::Tensor own_loss(FullyShardedDataParallel<Module>& fsdp, int step = 0) {
  const Group& group = fsdp.group();
  const Batch part = Batch::of_step(step, group.size()).part(group.rank(), group.size());
  return loss_of(fsdp.forward(part.data), part.target);
}

// Two replicas of a module that is split over two ranks each.
inline DeviceMesh two_replicas(const Group& all) {
  const std::vector<DeviceMesh::Dimension> grid{{"replicate", 2}, {"shard", 2}};
  return DeviceMesh::create(all, grid).get();
}

// Expects an error of LibTorch.
template <class F>
void expect_torch_error(F f, const std::string& part) {
  try {
    (void)f();
    FAIL() << "expected an error with: " << part;
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

template <class Module>
SlicedState state_of(const FullyShardedDataParallel<Module>& fsdp, const FullyShardedOptimizer& optimizer) {
  SlicedState state;
  fsdp.add_to(state);
  optimizer.add_to(state);
  return state;
}
// Returns the notes.
template <class Module>
std::map<std::string, std::string> load(FullyShardedDataParallel<Module>& fsdp,
                                        FullyShardedOptimizer& optimizer, const Checkpoints& checkpoints,
                                        std::int64_t step) {
  SlicedState state;
  fsdp.add_to(state);
  optimizer.add_wanted_to(state, checkpoints.names(step));
  state.notes = checkpoints.load(step, state);
  optimizer.take_from(state);
  return state.notes;
}

// A layer whose values depend on the seed.
inline std::shared_ptr<Block<Layer>> layer_of(std::uint64_t seed) {
  auto layer = std::make_shared<Block<Layer>>(5);
  for (const at::Tensor& parameter : layer->parameters())
    parameter.set_data(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kDouble));
  return layer;
}

// Expects that the gradients of this rank's slices equal the corresponding elements of the whole gradients,
// by name.
inline void expect_gradients(const ShardedModule& fsdp, const torch::nn::Module& expected,
                             double tolerance = 1e-10) {
  const auto parameters = expected.named_parameters();
  for (const ParameterSlice& slice : fsdp.units().slices()) {
    const at::Tensor& whole = parameters[slice.parameter].grad();
    const at::Tensor& own = slice.leaf.tensor.grad();
    ASSERT_EQ(whole.defined(), own.defined()) << slice.leaf.name;
    if (!whole.defined()) continue;
    EXPECT_TRUE(at::allclose(own, whole.flatten().slice(0, slice.begin, slice.end).to(own.dtype()), tolerance,
                             tolerance))
        << slice.leaf.name;
  }
}

// Expects that the values of this rank's slices equal the corresponding elements of the whole parameters.
inline void expect_parts(const ShardedModule& fsdp, const torch::nn::Module& expected, double tolerance) {
  const auto parameters = expected.named_parameters();
  for (const ParameterSlice& slice : fsdp.units().slices())
    EXPECT_TRUE(at::allclose(slice.leaf.tensor,
                             parameters[slice.parameter].flatten().slice(0, slice.begin, slice.end),
                             tolerance, tolerance))
        << slice.leaf.name;
}

// Runs loss(module, step, rank, batch) in each step in one process for all ranks, and sharded. Compares the
// gradients.
template <class Make, class Loss>
void expect_equal_steps(int steps, Make make, Loss loss, const Options& options = {}) {
  constexpr int ranks = 2;
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, make(), options};
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      const auto whole = make();
      const auto part = [&](int rank) { return Batch::of_step(step, ranks).part(rank, ranks); };
      ((loss(*whole, step, 0, part(0)) + loss(*whole, step, 1, part(1))) / ranks).backward();
      for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
      loss(fsdp, step, group.rank(), part(group.rank())).backward();
      expect_gradients(fsdp, *whole);
    }
  });
}

// The same with loss(module, batch). The second forward is predicted.
template <class Make, class Loss>
void expect_equal_gradients(Make make, Loss loss, const Options& options = {}) {
  expect_equal_steps(
      2, make, [&](auto& module, int, int, const Batch& part) { return loss(module, part); }, options);
}

// Two parameters that share their memory.
struct Aliased : torch::nn::Module {
  Aliased() {
    a = register_parameter("a", at::ones({4}, at::kDouble));
    register_parameter("b", a.detach());
  }
  at::Tensor a;
};

// One step of training; in one process with the batches of all ranks.
void train(auto& model, auto& optimizer, int step, int ranks, std::optional<int> rank = {}) {
  optimizer.zero_grad();
  Batch batch = Batch::of_step(step, ranks);
  if (rank) batch = batch.part(*rank, ranks);
  loss_of(model.forward(batch.data), batch.target).backward();
  optimizer.step();
}

}  // namespace weft::sharded::testing
