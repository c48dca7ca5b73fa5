// Pipelines on a stand-in for accelerators, whose streams run their jobs when something waits for them: each
// rank has a device.
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <mutex>
#include <set>

#include "tests/parallel/collectives/nccl/fake_devices.h"
#include "tests/support/errors.h"
#include "tests/support/fake_accelerator.h"

namespace weft::pipeline::pipeline_devices_test {
namespace {

using test::FakeAccelerator;

// LibTorch's engine makes a thread for each device when it is first used.
[[maybe_unused]] const FakeAccelerator& accelerator_of_the_engine = FakeAccelerator::install();

at::Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

struct Weight : torch::nn::Module {
  explicit Weight(std::uint64_t seed)
      : name("weight" + std::to_string(seed)), weight(register_parameter(name, numbers({6, 6}, seed))) {}
  // Tensor::set_data() refuses a PrivateUse1 tensor in the place of one on the CPU.
  void to(torch::Device device, bool) override {
    weight = *parameters_.find(name) = weight.detach().to(device).requires_grad_();
  }
  const std::string name;
  at::Tensor weight;
};

// Two stages, and a third one that also uses the output of the first one. Records the devices of the tensors
// that a stage receives.
struct Model {
  explicit Model(bool tied = false) {
    for (std::uint64_t i = 0; i < 3; ++i) weights.push_back(std::make_shared<Weight>(i));
    if (tied) weights[2] = weights[0];
  }
  Values compute(int stage, const Values& x) {
    const at::Tensor& weight = weights[static_cast<std::size_t>(stage)]->weight;
    {
      std::lock_guard lock(mutex);
      for (const at::Tensor& input : x) seen.insert({stage, input.device().str()});
      seen.insert({stage, weight.device().str()});
    }
    return {(x.size() == 2 ? x[0] * x[1] : x[0]).mm(weight).tanh()};
  }
  StageGraph graph() {
    StageGraph graph;
    for (int stage = 0; stage < 3; ++stage)
      graph.add({weights[static_cast<std::size_t>(stage)],
                 [this, stage](const Values& x) { return compute(stage, x); },
                 stage == 0   ? std::vector{step_input(0)}
                 : stage == 1 ? std::vector{Source{0}}
                              : std::vector{Source{1}, Source{0}}});
    return graph;
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = compute(0, {x})[0];
    return compute(2, {compute(1, {first})[0], first})[0];
  }
  std::vector<std::shared_ptr<Weight>> weights;
  std::mutex mutex;  // guards seen
  std::set<std::pair<int, std::string>> seen;
};

at::Tensor squares(const at::Tensor& output, const at::Tensor& target) {
  EXPECT_EQ(output.device(), target.device());
  return (output - target).square().sum() / static_cast<double>(output.numel());
}

std::vector<at::Tensor> expected_gradients(const at::Tensor& x, const at::Tensor& y) {
  Model model;
  squares(model.forward(x), y).backward();
  std::vector<at::Tensor> gradients;
  for (const auto& each : model.weights) gradients.push_back(each->weight.grad());
  return gradients;
}

class PipelineDevices : public ::testing::Test {
 protected:
  FakeAccelerator& accelerator = FakeAccelerator::install();
  const at::Tensor x = numbers({8, 6}, 10), y = numbers({8, 6}, 11);
  const std::vector<at::Tensor> expected = expected_gradients(x, y);
};

TEST_F(PipelineDevices, EachStageComputesOnTheDeviceOfItsRank) {
  using schedule::Recompute;
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    for (const Recompute mode : {Recompute::never, Recompute::always})
      for (const std::optional<int> inputs_on : {std::optional<int>(), std::optional(3)}) {
        SCOPED_TRACE(name);
        Model model;
        // The middle stage computes on the CPU.
        const std::vector<c10::Device> devices{FakeAccelerator::device(1), at::kCPU,
                                               FakeAccelerator::device(2)};
        LocalPipeline pipeline{
            model.graph(),
            schedule::add_recomputation(schedule::generate(name, {.ranks = 3, .microbatches = 4}), mode),
            {.loss = loss_of(squares), .devices = devices}};
        const auto moved = [&](const at::Tensor& tensor) {
          return inputs_on ? tensor.to(FakeAccelerator::device(*inputs_on)) : tensor;
        };
        const LocalStep step = pipeline.step({moved(x)}, {moved(y)});
        EXPECT_EQ(step.loss.device(), devices[2]);
        std::set<std::pair<int, std::string>> own;
        for (int stage = 0; stage < 3; ++stage)
          own.insert({stage, devices[static_cast<std::size_t>(stage)].str()});
        EXPECT_EQ(model.seen, own);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(model.weights[i]->weight.grad().device(), devices[i]);
          EXPECT_TRUE(at::allclose(model.weights[i]->weight.grad().cpu(), expected[i], 1e-10, 1e-10)) << i;
        }
        const Values outputs = pipeline.evaluate({moved(x)});
        EXPECT_EQ(outputs[0].device(), devices[2]);
        EXPECT_TRUE(at::allclose(outputs[0].cpu(), Model().forward(x), 1e-10, 1e-10));
      }
}

// A kernel that has not run when the value is sent.
TEST_F(PipelineDevices, AValueIncludesPendingWorkOfItsStream) {
  for (const auto& [from, to] : {std::pair{FakeAccelerator::device(1), FakeAccelerator::device(2)},
                                 {FakeAccelerator::device(1), c10::Device(at::kCPU)}}) {
    StageGraph graph;
    graph.add({std::make_shared<torch::nn::Module>(),
               [&](const Values& input) {
                 const at::Tensor output = at::empty_like(input[0]);
                 accelerator.fill_later(output, 7);
                 EXPECT_GT(accelerator.pending(accelerator.current(output.device())), 0U);
                 return Values{output};
               },
               {step_input(0)}});
    graph.add({std::make_shared<torch::nn::Module>(),
               [](const Values& input) { return Values{input[0] + 1}; },
               {Source{0}}});
    LocalPipeline pipeline{graph,
                           schedule::fill_drain({.ranks = 2, .microbatches = 2}),
                           {.loss = loss_of(squares), .devices = {from, to}}};
    EXPECT_TRUE(pipeline.evaluate({x})[0].cpu().eq(8).all().item<bool>());
  }
}

TEST_F(PipelineDevices, StagesUseTheStreamsOfTheCaller) {
  const c10::Device device = FakeAccelerator::device(1);
  const c10::Stream own = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  std::set<c10::StreamId> streams;
  StageGraph graph;
  graph.add({std::make_shared<Weight>(1),
             [&](const Values& input) {
               streams.insert(accelerator.current(device).id());
               return input;
             },
             {step_input(0)}});
  LocalPipeline pipeline{graph,
                         schedule::fill_drain({.ranks = 1, .microbatches = 2}),
                         {.loss = loss_of(squares), .devices = {device}}};
  const c10::StreamGuard guard(own);
  pipeline.evaluate({x});
  EXPECT_EQ(streams, std::set<c10::StreamId>{own.id()});
}

TEST_F(PipelineDevices, AParameterOfStagesOnSeveralDevicesIsRefused) {
  Model model(true);
  test::expect_error(
      [&] {
        LocalPipeline(model.graph(), schedule::fill_drain({.ranks = 3, .microbatches = 2}),
                      {.loss = loss_of(squares),
                       .devices = {FakeAccelerator::device(0), FakeAccelerator::device(0),
                                   FakeAccelerator::device(1)}});
      },
      rpc::ErrorKind::unsupported, "share a parameter or buffer");
  EXPECT_TRUE(model.weights[0]->weight.is_cpu());  // nothing was moved
}

// Ranks of a group in one process, each with a device, and a fake NCCL. The devices execute work on all
// streams except the default ones, on which stages compute. While pipelines are created, they also execute
// work on the default streams.
class GroupPipelineOnDevices : public PipelineDevices {
 protected:
  // Runs it on all ranks at once, while the devices work.
  template <class F>
  void on_all_ranks(int count, bool has_nccl, const F& body) {
    made = 0;
    collectives::testing::FakeDevices devices(count);
    devices.run_on_devices(made, making, body, has_nccl);
    messages = devices.nccl.sent();
  }
  std::size_t messages = 0;
  int making = 0;  // pipelines, which count in `made` when they are
  std::atomic<int> made = 0;
};

TEST_F(GroupPipelineOnDevices, ValuesAreSentByNccl) {
  for (const bool through_host : {false, true})
    for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
      SCOPED_TRACE(name);
      const auto computations = schedule::generate(name, {.ranks = 3, .microbatches = 4});
      on_all_ranks(3, !through_host, [&](const collectives::Group& group, c10::Device device) {
        Model model;
        GroupPipeline pipeline(
            group, model.graph(), computations,
            {.loss = loss_of(squares), .device = device, .values_through_host = through_host});
        const auto own = static_cast<std::size_t>(group.rank());
        for (int step = 1; step <= 2; ++step) {
          pipeline.step({x}, {y});
          EXPECT_TRUE(
              at::allclose(model.weights[own]->weight.grad().cpu(), step * expected[own], 1e-10, 1e-10));
        }
        EXPECT_EQ(model.seen, (std::set<std::pair<int, std::string>>{{group.rank(), device.str()}}));
      });
      // Two steps, four micro-batches, three edges, forward and backward.
      EXPECT_EQ(messages, through_host ? 0U : 2U * 4 * 3 * 2);
    }
}

TEST_F(GroupPipelineOnDevices, AnEdgeCarriesTensorsOfEachDeviceAndNone) {
  on_all_ranks(2, true, [&](const collectives::Group& group, c10::Device device) {
    StageGraph graph;
    graph.add({std::make_shared<torch::nn::Module>(),
               [&](const Values& input) {
                 const at::Tensor output = at::empty_like(input[0]);
                 accelerator.fill_later(output, 7);
                 EXPECT_GT(accelerator.pending(accelerator.current(device)), 0U);
                 return Values{output, at::full({2, 3}, 5, at::kLong), output.slice(0, 0, 0)};
               },
               {step_input(0)}});
    graph.add({std::make_shared<torch::nn::Module>(),
               [](const Values& input) {
                 EXPECT_EQ(input[2].sizes(), (at::IntArrayRef{0, 6}));
                 return Values{input[0] + 1, input[1]};
               },
               {Source{0, 0}, Source{0, 1}, Source{0, 2}}});
    GroupPipeline pipeline(group, graph, schedule::fill_drain({.ranks = 2, .microbatches = 2}),
                           {.loss = loss_of(squares), .device = device});
    const Values outputs = pipeline.evaluate({x});
    if (group.rank() == 0) return;
    EXPECT_TRUE(outputs.at(0).cpu().eq(8).all().item<bool>());
    EXPECT_TRUE(outputs.at(1).cpu().eq(5).all().item<bool>());
  });
}

// Two pipelines of one rank each.
TEST_F(GroupPipelineOnDevices, ShardedStagesAreGatheredAndReducedByNccl) {
  const auto schedule = schedule::add_unsharding(
      schedule::interleaved({.ranks = 1, .microbatches = 4, .chunks = 3}), /*active=*/1);
  making = 2;
  for (const bool in_host_memory : {false, true})
    on_all_ranks(2, true, [&](const collectives::Group& group, c10::Device device) {
      Model model;
      GroupPipeline pipeline(group.split(group.rank(), 0).get().value(), model.graph(), schedule,
                             {.loss = loss_of(squares),
                              .data_parallel = group,
                              .sharded = sharded::ShardOptions{.in_host_memory = in_host_memory},
                              .device = device});
      ++made;
      for (int step = 1; step <= 2; ++step) {
        pipeline.step({x}, {y});
        std::int64_t elements = 0;
        for (const sharded::ParameterSlice& slice : pipeline.sharded().slices()) {
          const auto stage = static_cast<std::size_t>(slice.parameter.back() - '0');
          const at::Tensor gradient = slice.leaf.tensor.grad();
          EXPECT_EQ(gradient.is_cpu(), in_host_memory);
          EXPECT_TRUE(at::allclose(gradient.cpu(),
                                   step * expected[stage].reshape({-1}).slice(0, slice.begin, slice.end),
                                   1e-10, 1e-10));
          elements += gradient.numel();
        }
        EXPECT_GE(elements, 3 * 6 * 6 / 2 - 3 * 16);  // about half, in parts that are aligned
      }
    });
}

TEST_F(GroupPipelineOnDevices, WithoutNcclAllRanksGetTheError) {
  on_all_ranks(3, false, [&](const collectives::Group& group, c10::Device device) {
    Model model;
    test::expect_error(
        [&] {
          GroupPipeline(group, model.graph(), schedule::fill_drain({.ranks = 3, .microbatches = 2}),
                        {.loss = loss_of(squares), .device = device});
        },
        rpc::ErrorKind::unsupported, "values_through_host");
  });
}

TEST_F(GroupPipelineOnDevices, AStageThatThrowsFailsTheStepOnAllRanks) {
  on_all_ranks(3, true, [&](const collectives::Group& group, c10::Device device) {
    Model model;
    StageGraph graph = model.graph();
    const auto failing = [&](const Values& input) -> Values {
      if (group.rank() == 1) throw std::runtime_error("no luck");
      return model.compute(group.rank(), input);
    };
    StageGraph throwing;
    for (int stage = 0; stage < 3; ++stage) throwing.add({graph[stage].module, failing, graph[stage].inputs});
    GroupPipeline pipeline(group, throwing,
                           schedule::one_forward_one_backward({.ranks = 3, .microbatches = 4}),
                           {.loss = loss_of(squares), .device = device});
    test::expect_error([&] { return pipeline.step({x}, {y}); }, "no luck");
  });
}

}  // namespace
}  // namespace weft::pipeline::pipeline_devices_test
