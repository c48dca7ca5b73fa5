// The layers on a fake accelerator and a fake NCCL, compared with the same layers on the CPU. Each rank has a
// device.
//
// Kernels write their results when their stream runs. A stream runs only if something waits for it. With
// Streams::eager, a stream other than the default one also runs as soon as it gets a job. In the first case,
// code that reads a collective's result without waiting for it gets wrong values in every run. In the second
// case, a collective that does not wait for its inputs gets wrong values in every run.
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/tensor_parallel/cross_entropy.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/tensor_parallel/mixture_of_experts.h>
#include <weft/parallel/tensor_parallel/ring_attention.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::tensor_parallel_devices_test {
namespace {

using namespace testing;
using collectives::DeviceMesh;
using test::FakeAccelerator;

// LibTorch's engine makes a thread for each device when it is first used.
[[maybe_unused]] const FakeAccelerator& accelerator_of_the_engine = FakeAccelerator::install();

enum class Streams : std::uint8_t { lazy, eager };

using Results = std::vector<at::Tensor>;
using Compute = std::function<Results()>;

// Module::to() cannot move a module to a device of PrivateUse1.
template <class... Parameters>
void move_to(c10::Device device, Parameters&... parameters) {
  const auto move = [&](at::Tensor& parameter) {
    parameter = parameter.detach().to(at::kDouble).to(device).requires_grad_();
  };
  (move(parameters), ...);
}

class TensorParallelOnDevices : public ::testing::TestWithParam<Streams> {
 protected:
  TensorParallelOnDevices() { accelerator.set_results_late(true); }
  ~TensorParallelOnDevices() override { accelerator.set_results_late(false); }

  // Runs body(group, device, ready) for each rank. All streams run until the ranks have called ready().
  template <class F>
  void on_all_ranks(int ranks, const F& body) {
    collectives::testing::FakeDevices devices(ranks);
    devices.nccl.block = [&](collectives::nccl::Stream handle, std::function<bool()> ended) {
      const c10::Stream stream = FakeAccelerator::stream_of(handle);
      accelerator.block(stream, std::move(ended));
      {
        const std::lock_guard lock(mutex);
        streams.insert(stream.id());
      }
      if (GetParam() == Streams::eager && stream.id() != 0) accelerator.advance(stream);
    };
    std::atomic<int> running = ranks, made = 0;
    std::atomic<bool> all_made = false;
    Company company(ranks, Backend::messages, std::make_unique<test::InProcessJobStore>(),
                    [&](int) { return devices.devices(); });
    const auto groups = company.groups({.timeout = std::chrono::seconds(20)});
    std::vector<std::thread> threads;
    for (const Group& group : groups)
      threads.emplace_back([&] {
        const c10::Device device = FakeAccelerator::device(group.rank());
        const auto error = error_of([&] {
          group.prepare(device).get();
          body(group, device, [&] {
            ++made;
            while (!all_made) std::this_thread::yield();
          });
          c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
        });
        EXPECT_FALSE(error) << error->what();
        --running;
      });
    while (made < ranks && running == ranks) {
      for (int rank = 0; rank < ranks; ++rank)
        for (c10::StreamId id = 0; id <= FakeAccelerator::pooled; ++id)
          accelerator.advance(c10::Stream(c10::Stream::UNSAFE, FakeAccelerator::device(rank), id));
      std::this_thread::yield();
    }
    {
      const std::lock_guard lock(mutex);
      streams.clear();
    }
    all_made = true;
    for (auto& thread : threads) thread.join();
  }

  // make(group, device) creates layers and a function that computes with them. Expects the same results on
  // devices and on the CPU.
  void expect_equal(int ranks, const std::function<Compute(const Group&, c10::Device)>& make) {
    on_all_ranks(ranks, [&](const Group& group, c10::Device device, const auto& ready) {
      const Compute on_cpu = make(group, at::kCPU), on_device = make(group, device);
      ready();
      const Results expected = on_cpu(), actual = on_device();
      ASSERT_EQ(actual.size(), expected.size());
      Results values;
      for (const at::Tensor& each : actual) {
        EXPECT_EQ(each.device(), device);
        values.push_back(each.cpu());
      }
      expect_close(values, expected);
    });
  }

  FakeAccelerator& accelerator = FakeAccelerator::install();
  std::mutex mutex;                 // guards what follows
  std::set<c10::StreamId> streams;  // that ran collectives since ready()
};
INSTANTIATE_TEST_SUITE_P(Streams, TensorParallelOnDevices, ::testing::Values(Streams::lazy, Streams::eager),
                         [](const auto& info) { return info.param == Streams::lazy ? "lazy" : "eager"; });

constexpr std::int64_t width = 6, sequence = 12;

at::Tensor leaf_on(c10::Device device, const at::Tensor& values) {
  return values.detach().to(device).requires_grad_();
}

TEST_P(TensorParallelOnDevices, LinearLayers) {
  expect_equal(2, [](const Group& group, c10::Device device) -> Compute {
    const at::Generator drawn = generator(7);
    ColumnParallelLinear up(group, width, 4 * width, ColumnParallelOptions{.generator = drawn});
    RowParallelLinear down(group, 4 * width, width, RowParallelOptions{.generator = drawn});
    move_to(device, up->weight, up->bias, down->weight, down->bias);
    return [=]() mutable -> Results {
      const at::Tensor x = leaf_on(device, numbers({sequence, width}, 1));
      const at::Tensor output = down(torch::gelu(up(x)));
      output.square().sum().backward();
      return {output.detach(),     x.grad(),         up->weight.grad(), up->bias.grad(),
              down->weight.grad(), down->bias.grad()};
    };
  });
  EXPECT_GT(streams.size(), 1U) << "backward reduces on a communication stream";
}

TEST_P(TensorParallelOnDevices, LinearLayersWithSequenceParallel) {
  for (const std::int64_t dim : {0, 1})
    expect_equal(2, [dim](const Group& group, c10::Device device) -> Compute {
      const at::Generator drawn = generator(7);
      SequenceParallelLayerNorm norm(group, width);
      ColumnParallelLinear up(group, width, 4 * width,
                              ColumnParallelOptions{.sequence_dim = dim, .generator = drawn});
      RowParallelLinear down(group, 4 * width, width,
                             RowParallelOptions{.sequence_dim = dim, .generator = drawn});
      move_to(device, norm->weight, norm->bias, up->weight, up->bias, down->weight, down->bias);
      return [=]() mutable -> Results {
        const at::Tensor x = leaf_on(device, own_chunk(group, numbers({sequence, sequence, width}, 1), dim));
        const at::Tensor output = down(torch::gelu(up(norm(x))));
        output.square().sum().backward();
        return {output.detach(),   x.grad(),        norm->weight.grad(), norm->bias.grad(),
                up->weight.grad(), up->bias.grad(), down->weight.grad(), down->bias.grad()};
      };
    });
  EXPECT_GT(streams.size(), 1U) << "backward gathers and reduces on a communication stream";
}

constexpr std::int64_t vocabulary = 13;
at::Tensor ids(std::uint64_t seed) {
  auto drawn = generator(seed);
  return at::randint(vocabulary, {2, sequence}, drawn, at::kLong);
}

TEST_P(TensorParallelOnDevices, ATiedEmbeddingWithItsCrossEntropy) {
  for (const std::optional<std::int64_t> dim :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)})
    expect_equal(2, [dim](const Group& group, c10::Device device) -> Compute {
      VocabularyParallelEmbedding tokens(
          group, vocabulary, width,
          VocabularyEmbeddingOptions{.sequence_dim = dim, .generator = generator(5)});
      move_to(device, tokens->weight);
      return [=]() mutable -> Results {
        const at::Tensor logits = tokens->logits(tokens(ids(1).to(device)).tanh());
        at::Tensor targets = ids(2);
        targets[0][3] = -100;
        const at::Tensor loss = vocabulary_parallel_cross_entropy(group, logits, targets.to(device),
                                                                  vocabulary, {.label_smoothing = 0.1});
        loss.backward();
        return {loss.detach(), tokens->weight.grad()};
      };
    });
}

// The host does not wait for the device, so it cannot refuse them.
TEST_P(TensorParallelOnDevices, IdsAndTargetsOutsideOfTheVocabularyGiveNaN) {
  on_all_ranks(2, [](const Group& group, c10::Device device, const auto& ready) {
    VocabularyParallelEmbedding tokens(group, vocabulary, width,
                                       VocabularyEmbeddingOptions{.generator = generator(5)});
    move_to(device, tokens->weight);
    ready();
    for (const std::int64_t bad : {vocabulary, std::int64_t{-1}}) {
      const at::Tensor some = at::tensor({std::int64_t{3}, bad}, at::kLong).to(device);
      const at::Tensor rows = tokens(some).cpu();
      EXPECT_TRUE(rows[0].isfinite().all().item<bool>());
      EXPECT_TRUE(rows[1].isnan().all().item<bool>());
      const at::Tensor logits = tokens->logits(at::ones({2, width}, at::kDouble).to(device));
      const at::Tensor losses = vocabulary_parallel_cross_entropy(group, logits, some, vocabulary,
                                                                  {.reduction = at::Reduction::None})
                                    .cpu();
      EXPECT_TRUE(std::isfinite(losses[0].item<double>()));
      EXPECT_TRUE(std::isnan(losses[1].item<double>()));
    }
  });
}

TEST_P(TensorParallelOnDevices, RingAttentionOverThreeRanks) {
  for (const bool causal : {false, true})
    expect_equal(3, [causal](const Group& group, c10::Device device) -> Compute {
      const RingAttention attention(group, {.causal = causal});
      return [=]() -> Results {
        const auto part = [&](std::uint64_t seed) {
          return leaf_on(device, own_chunk(group, numbers({2, 2, sequence, 4}, seed), 2));
        };
        const at::Tensor query = part(1), key = part(2), value = part(3);
        const at::Tensor output = attention(query, key, value);
        output.square().sum().backward();
        return {output.detach(), query.grad(), key.grad(), value.grad()};
      };
    });
  EXPECT_GT(streams.size(), 0U);
  EXPECT_FALSE(streams.contains(0)) << "messages are on a communication stream";
}

TEST_P(TensorParallelOnDevices, MixturesOfExperts) {
  for (const std::optional<double> capacity : {std::optional<double>(), std::optional<double>(1.0)})
    expect_equal(2, [capacity](const Group& group, c10::Device device) -> Compute {
      MixtureOfExperts experts(group, width,
                               MixtureOptions{.experts = 4,
                                              .hidden = 2 * width,
                                              .top_k = 2,
                                              .capacity_factor = capacity,
                                              .generator = generator(11)});
      move_to(device, experts->router, experts->up, experts->up_bias, experts->down, experts->down_bias);
      return [=]() mutable -> Results {
        const at::Tensor x =
            leaf_on(device, numbers({sequence, width}, static_cast<std::uint64_t>(group.rank() + 1)));
        const auto [output, balance] = experts(x);
        (output.square().sum() + balance).backward();
        return {output.detach(),        balance.detach(),         x.grad(),
                experts->router.grad(), experts->up.grad(),       experts->up_bias.grad(),
                experts->down.grad(),   experts->down_bias.grad()};
      };
    });
}

TEST_P(TensorParallelOnDevices, ClippingOverAMesh) {
  for (const double norm_type : {2.0, std::numeric_limits<double>::infinity()})
    expect_equal(4, [norm_type](const Group& world, c10::Device device) -> Compute {
      const std::vector<DeviceMesh::Dimension> grid{{"pipeline", 2}, {"tensor", 2}};
      const auto mesh = DeviceMesh::create(world, grid).get();
      return [=]() -> Results {
        const auto with_gradient = [&](const at::Tensor& gradient) {
          const at::Tensor parameter = at::zeros(gradient.sizes(), gradient.options().device(device));
          parameter.requires_grad_().mutable_grad() = gradient.to(device);
          return parameter;
        };
        const Split split{mesh.group("tensor"), 0, 8};
        const auto stage = static_cast<std::uint64_t>(mesh.coordinate("pipeline"));
        const std::vector<Placement> parameters{
            {.name = "split",
             .tensor = with_gradient(split.part_of(numbers({8, 3}, 1 + stage))),
             .splits = {split}},
            {.name = "replicated", .tensor = with_gradient(numbers({5}, 3 + stage))}};
        const double norm = clip_grad_norm(
            parameters, {{mesh.group("tensor")}, {mesh.group("pipeline"), true}}, 0.5, norm_type);
        return {at::full({}, norm, at::kDouble).to(device), parameters[0].tensor.grad(),
                parameters[1].tensor.grad()};
      };
    });
}

}  // namespace
}  // namespace weft::tensor_parallel::tensor_parallel_devices_test
