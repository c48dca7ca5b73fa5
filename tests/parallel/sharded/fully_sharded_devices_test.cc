// FullyShardedDataParallel on a stand-in for accelerators and a fake of NCCL: each rank has a device, whose
// default stream runs its jobs only when something waits for them.
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/support/errors.h"

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
    for (at::Tensor& parameter : model.parameters()) parameter.sub_(0.1 * parameter.grad());
  }
  std::map<std::string, at::Tensor> values;
  for (const auto& entry : model.named_parameters()) values[entry.key()] = entry.value().detach().flatten();
  return values;
}

class FullyShardedOnDevices : public ::testing::TestWithParam<bool> {
 protected:
  template <class F>
  void on_all_ranks(const F& body) {
    collectives::testing::FakeDevices devices(ranks);
    std::atomic<int> running = ranks;
    made = 0;
    collectives::testing::Company company(ranks, collectives::testing::Backend::messages,
                                          std::make_unique<test::InProcessJobStore>(),
                                          [&](int) { return devices.devices(); });
    const auto groups = company.groups();
    std::vector<std::thread> threads;
    for (const auto& group : groups)
      threads.emplace_back([&] {
        const auto error = test::error_of([&] { body(group, FakeAccelerator::device(group.rank())); });
        EXPECT_FALSE(error) << error->what();
        --running;
      });
    while (running > 0) {
      for (int rank = 0; rank < ranks; ++rank)
        for (c10::StreamId id = made < ranks ? 0 : 1; id <= FakeAccelerator::pooled; ++id)
          accelerator.advance(c10::Stream(c10::Stream::UNSAFE, FakeAccelerator::device(rank), id));
      std::this_thread::yield();
    }
    for (auto& thread : threads) thread.join();
  }
  FakeAccelerator& accelerator = FakeAccelerator::install();
  std::atomic<int> made = 0;  // modules that are split; their making works on default streams too
};
INSTANTIATE_TEST_SUITE_P(Parts, FullyShardedOnDevices, ::testing::Bool());

TEST_P(FullyShardedOnDevices, EqualsOneProcess) {
  const bool offload = GetParam();
  const auto expected = alone();
  on_all_ranks([&](const collectives::Group& group, c10::Device device) {
    const auto model = std::make_shared<Chain>(device);
    group.prepare(device).get();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .offload = offload}};
    ++made;
    for (int step = 0; step < steps; ++step) {
      for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
      // In two parts, of which the second is added.
      for (int part = 0; part < 2; ++part)
        (fsdp.forward(batch(step, group.rank()).to(device)).square().sum() / 2).backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : fsdp.parameters()) {
        EXPECT_EQ(parameter.is_cpu(), offload);
        parameter.sub_(0.1 * parameter.grad());
      }
    }
    for (const auto& entry : fsdp.named_parameters()) {
      const auto open = entry.key().find('['), colon = entry.key().find(':');
      const auto begin = std::stoll(entry.key().substr(open + 1, colon - open - 1));
      const at::Tensor& whole = expected.at(entry.key().substr(0, open));
      EXPECT_TRUE(
          at::allclose(entry.value().cpu(), whole.narrow(0, begin, entry.value().numel()), 1e-10, 1e-10))
          << entry.key();
    }
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_devices_test
