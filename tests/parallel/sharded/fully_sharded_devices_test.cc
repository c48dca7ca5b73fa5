// FullyShardedDataParallel on a stand-in for accelerators and a fake of NCCL: each rank has a device, whose
// default stream runs its jobs only when something waits for them.
#include <weft/parallel/sharded/checkpoint/checkpoints.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/sharded/checkpoint/states.h"

namespace weft::sharded::fully_sharded_devices_test {
namespace {

using test::FakeAccelerator;

// LibTorch's engine makes a thread for each device when it is first used.
[[maybe_unused]] const FakeAccelerator& accelerator_of_the_engine = FakeAccelerator::install();

at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

struct Weight : torch::nn::Module {
  Weight(std::uint64_t seed, c10::Device device)
      : weight(register_parameter("weight", numbers({6, 6}, seed).to(device))) {}
  at::Tensor forward(const at::Tensor& x) { return x.mm(weight).tanh(); }
  at::Tensor weight;
};

struct Chain : torch::nn::Module {
  explicit Chain(c10::Device device = at::kCPU) {
    for (std::uint64_t i = 0; i < 4; ++i) layers->push_back(std::make_shared<Weight>(i, device));
    register_module("layers", layers);
    head = register_module("head", std::make_shared<Weight>(9, device));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(layers->forward(x)); }
  torch::nn::Sequential layers;
  std::shared_ptr<Weight> head;
};

constexpr int ranks = 2, steps = 3;
at::Tensor batch(int step, int rank) {
  return numbers({3, 6}, static_cast<std::uint64_t>(50 + 10 * step + rank));
}

std::map<std::string, at::Tensor> alone() {
  Chain model;
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    for (int rank = 0; rank < ranks; ++rank)
      (model.forward(batch(step, rank)).square().sum() / ranks).backward();
    const at::NoGradGuard no_grad;
    for (auto& entry : model.named_parameters())
      entry.value().sub_((entry.key().starts_with("head") ? 0.2 : 0.1) * entry.value().grad());
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& entry : model.named_parameters()) values[entry.key()] = entry.value().detach().flatten();
  return values;
}

struct Parts {
  bool offload, narrow;  // narrow: forward and backward compute in float32
};
class FullyShardedOnDevices : public ::testing::TestWithParam<Parts> {
 protected:
  template <class F>
  void on_all_ranks(const F& body) {
    made = 0;
    collectives::testing::FakeDevices(ranks).run_on_devices(made, ranks, body);
  }
  Options options() const {
    Options options{.block = "layers.*", .offload = offload};
    if (narrow) options.mixed_precision = {.parameters = at::kFloat, .reduction = at::kDouble};
    return options;
  }
  const bool offload = GetParam().offload, narrow = GetParam().narrow;
  std::atomic<int> made = 0;  // the number of split modules; splitting uses default streams, too
};
INSTANTIATE_TEST_SUITE_P(Parts, FullyShardedOnDevices,
                         ::testing::Values(Parts{false, false}, Parts{true, false}, Parts{true, true}));

TEST_P(FullyShardedOnDevices, EqualsOneProcess) {
  const double tolerance = narrow ? 1e-5 : 1e-10;
  const auto expected = alone();
  on_all_ranks([&](const collectives::Group& group, c10::Device device) {
    const auto model = std::make_shared<Chain>(device);
    group.prepare(device).get();
    FullyShardedDataParallel fsdp{group, model, options()};
    FullyShardedOptimizer optimizer(
        fsdp, dist_optim::OptimizerSpec(torch::optim::SGDOptions(0.1)).with_group("head", {{"lr", 0.2}}));
    ++made;
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const auto backward = [&] {
        (fsdp.forward(batch(step, group.rank()).to(device)).square().sum() / 2).backward();
      };
      // The gradients are computed in two parts, the second of which is added.
      if (step == 1) {
        const auto guard = fsdp.no_sync();
        backward();
      } else {
        backward();
      }
      backward();
      for (const at::Tensor& parameter : fsdp.parameters()) {
        EXPECT_EQ(parameter.is_cpu(), offload);
        EXPECT_EQ(parameter.scalar_type(), at::kDouble);
      }
      optimizer.step();
    }
    for (const ParameterSlice& slice : fsdp.units().slices())
      EXPECT_TRUE(at::allclose(slice.leaf.tensor.cpu(),
                               expected.at(slice.parameter).slice(0, slice.begin, slice.end), tolerance,
                               tolerance))
          << slice.leaf.name;
  });
}

TEST_P(FullyShardedOnDevices, AreSavedAndLoaded) {
  const testing::Folder folder;
  on_all_ranks([&](const collectives::Group& group, c10::Device device) {
    const auto model = std::make_shared<Chain>(device);
    model->register_buffer("seen", at::full({2}, 3.0, at::kDouble).to(device));
    group.prepare(device).get();
    FullyShardedDataParallel fsdp{group, model, options()};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    Checkpoints checkpoints(group, folder.path);
    ++made;
    const auto step = [&](int number) {
      optimizer.zero_grad();
      fsdp.forward(batch(number, group.rank()).to(device)).square().sum().backward();
      optimizer.step();
      std::vector<at::Tensor> values;
      for (const at::Tensor& parameter : fsdp.parameters())
        values.push_back(parameter.detach().cpu().clone());
      return values;
    };
    step(0);
    SlicedState state, wanted;
    fsdp.add_to(state);
    optimizer.add_to(state);
    checkpoints.save(1, state).get();
    const auto expected = step(1);
    fsdp.add_to(wanted);
    optimizer.add_wanted_to(wanted, checkpoints.names(1));
    wanted.notes = checkpoints.load(1, wanted);
    optimizer.take_from(wanted);
    const auto again = step(1);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(again[i], expected[i])) << i;
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_devices_test
