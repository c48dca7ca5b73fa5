// Data parallel training on a GPU, over NCCL: one rank, and two processes that share one GPU. Skipped where
// LibTorch's CUDA libraries, NCCL or a GPU are missing.
#include <weft/dist_autograd/pass.h>
#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>
#include <weft/parallel/data_parallel/hooks/quantization_hook.h>
#include <weft/parallel/data_parallel/hooks/top_k_hook.h>
#include <weft/parallel/data_parallel/optimizer_in_backward.h>
#include <weft/parallel/data_parallel/sync_batch_norm.h>
#include <weft/parallel/training/autocast.h>
#include <weft/parallel/training/unscale.h>

#include <map>

#include "tests/parallel/collectives/nccl/rank_processes.h"
#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::distributed_data_parallel_gpu_test {
namespace {

using namespace testing;
namespace nccl = collectives::nccl;
using namespace std::chrono_literals;

const c10::Device gpu(c10::kCUDA, 0);

Options small() { return {.bucket_bytes = {200, 400}}; }

at::Tensor loss_of(auto& forward, const Batch& batch, bool all = true) {
  return torch::mse_loss(forward.forward(batch.data.to(gpu), all), batch.target.to(gpu));
}

std::vector<at::Tensor> on_cpu(const torch::nn::Module& module) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : module.parameters()) values.push_back(parameter.detach().cpu());
  return values;
}

std::shared_ptr<Net> net_on_gpu() {
  auto net = std::make_shared<Net>();
  net->to(gpu);
  return net;
}

// Trains in one process with the batches of all ranks.
std::vector<at::Tensor> trained_alone(int ranks, int steps) {
  const auto net = net_on_gpu();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(*net, Batch::of_step(step, ranks), step % 3 != 2).backward();
    optimizer.step();
  }
  return on_cpu(*net);
}

// --- What each rank does ---

void train(const Group& group, const Options& options, const std::shared_ptr<CommunicationHook>& hook = {},
           double tolerance = 1e-10) {
  constexpr int steps = 6;
  const auto net = net_on_gpu();
  DistributedDataParallel ddp{group, net, options};
  ddp.set_hook(hook);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const Batch batch = Batch::of_step(step, group.size()).part(group.rank(), group.size());
    loss_of(ddp, batch, options.static_graph || step % 3 != 2).backward();
    optimizer.step();
  }
  if (options.static_graph) return;
  expect_close(on_cpu(*net), trained_alone(group.size(), steps), tolerance);
}

void trains(const Group& group) {
  for (const Overlap overlap : {Overlap::automatic, Overlap::group, Overlap::caller, Overlap::after}) {
    Options options = small();
    options.overlap = overlap;
    train(group, options);
  }
  train(group, {});
}

void trains_a_static_graph(const Group& group) {
  Options options = small();
  options.static_graph = true;
  train(group, options);
}

// The weights of all ranks are the same bits, and the loss falls.
void hooks_keep_the_ranks_equal(const Group& group) {
  const std::map<std::string, std::function<std::shared_ptr<CommunicationHook>()>> hooks{
      {"bfloat16", [] { return std::make_shared<CastHook>(at::kBFloat16); }},
      {"PowerSGD", [] { return std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 2}); }},
      {"quantization", [] { return std::make_shared<QuantizationHook>(); }},
      {"top k", [] { return std::make_shared<TopKHook>(); }},
      {"Adasum", [] { return std::make_shared<AdasumHook>(); }}};
  for (const auto& [name, make] : hooks) {
    SCOPED_TRACE(name);
    const auto net = std::make_shared<Net>(1, at::kFloat);
    net->to(gpu);
    DistributedDataParallel ddp{group, net, small()};
    ddp.set_hook(make());
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Batch batch = Batch::of_step(0, group.size()).part(group.rank(), group.size());
    batch.data = batch.data.to(at::kFloat), batch.target = batch.target.to(at::kFloat);
    double first = 0, last = 0;
    for (int step = 0; step < 6; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = loss_of(ddp, batch);
      loss.backward();
      optimizer.step();
      (step == 0 ? first : last) = loss.item<double>();
    }
    EXPECT_LT(last, first);
    for (const at::Tensor& parameter : net->parameters()) {
      at::Tensor from_rank_0 = parameter.detach().clone();
      group.broadcast(from_rank_0, 0).get();
      EXPECT_TRUE(at::equal(from_rank_0, parameter));
    }
  }
}

void mixed_precision_trains(const Group& group) {
  Options options = small();
  options.mixed_precision = {.parameters = at::kBFloat16, .reduction = at::kBFloat16};
  const auto net = std::make_shared<Net>(1, at::kFloat);
  net->to(gpu);
  DistributedDataParallel ddp{group, net, options};
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const Batch batch = Batch::of_step(0, group.size()).part(group.rank(), group.size());
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor output = ddp.forward(batch.data.to(gpu), true);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    const at::Tensor loss = torch::mse_loss(output.to(at::kFloat), batch.target.to(gpu, at::kFloat));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(net->first->weight.grad().scalar_type(), at::kFloat);
}

// Only rank 0 has a gradient that is not finite.
void an_infinite_gradient_is_found_by_all(const Group& group) {
  const auto net = std::make_shared<Net>(1, at::kFloat);
  net->to(gpu);
  DistributedDataParallel ddp{group, net, small()};
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const Batch batch = Batch::of_step(0, group.size()).part(group.rank(), group.size());
  for (const bool finite : {true, false}) {
    optimizer.zero_grad();
    at::Tensor output;
    {
      const training::Autocast autocast(at::kCUDA);
      output = ddp.forward(batch.data.to(gpu, at::kFloat), true);
    }
    EXPECT_EQ(output.scalar_type(), at::kHalf);
    const double factor = finite || group.rank() != 0 ? 1024 : 1e38;
    (torch::mse_loss(output.to(at::kFloat), batch.target.to(gpu, at::kFloat)) * factor).backward();
    EXPECT_EQ(training::unscale_gradients(group, optimizer, 1024), finite);
  }
}

void sync_batch_norm_is_that_of_all_data(const Group& group) {
  auto generator = at::detail::createCPUGenerator(7);
  const at::Tensor all = at::randn({4 * group.size(), 3, 5, 5}, generator, at::kDouble).to(gpu);
  const at::Tensor weights = at::randn({4 * group.size(), 3, 5, 5}, generator, at::kDouble).to(gpu);
  torch::nn::BatchNorm2d alone(3);
  alone->to(gpu, at::kDouble);
  const at::Tensor x = all.clone().set_requires_grad(true);
  const at::Tensor y = alone(x);
  (y * weights).sum().backward();

  SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
  norm->to(gpu, at::kDouble);
  const at::Tensor part = all.chunk(group.size())[group.rank()].clone().set_requires_grad(true);
  const at::Tensor z = norm(part);
  (z * weights.chunk(group.size())[group.rank()]).sum().backward();
  expect_close({z.cpu(), part.grad().cpu(), norm->running_var.cpu()},
               {y.chunk(group.size())[group.rank()].cpu(), x.grad().chunk(group.size())[group.rank()].cpu(),
                alone->running_var.cpu()});
}

void sparse_gradients_are_averaged(const Group& group) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  embedding->to(gpu, at::kDouble);
  DistributedDataParallel ddp{group, embedding};
  const at::Tensor rows = at::tensor({group.rank(), 5}, at::kLong).to(gpu);
  ddp.forward(rows).sum().backward();
  at::Tensor expected = at::zeros({10, 4}, at::kDouble);
  for (int rank = 0; rank < group.size(); ++rank) expected[rank] += 1.0 / group.size();
  expected[5] += 1;
  EXPECT_TRUE(embedding->weight.grad().is_sparse());
  expect_close({embedding->weight.grad().to_dense().cpu()}, {expected});
}

void a_pass_averages(const Group& group, rpc::Agent& agent) {
  const auto net = net_on_gpu();
  DistributedDataParallel ddp{group, net, small()};
  const Batch all = Batch::of_step(0, group.size());
  const Batch part = all.part(group.rank(), group.size());
  dist_autograd::Pass pass{agent};
  const at::Tensor loss = torch::mse_loss(ddp.forward(pass, part.data.to(gpu)), part.target.to(gpu));
  pass.backward(loss).get();
  std::vector<at::Tensor> averaged, expected;
  for (const at::Tensor& parameter : net->parameters()) averaged.push_back(pass.gradient(parameter).cpu());
  const auto alone = net_on_gpu();
  loss_of(*alone, all).backward();
  for (const at::Tensor& parameter : alone->parameters()) expected.push_back(parameter.grad().cpu());
  expect_close(averaged, expected);
}

void steps_in_backward(const Group& group) {
  const auto net = net_on_gpu();
  DistributedDataParallel ddp{group, net, small()};
  OptimizerInBackward optimizer(ddp, [](const at::Tensor& parameter) {
    return std::make_unique<torch::optim::SGD>(std::vector{parameter},
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  for (int step = 0; step < 2; ++step)
    loss_of(ddp, Batch::of_step(step, group.size()).part(group.rank(), group.size())).backward();
  expect_close(on_cpu(*net), trained_alone(group.size(), 2));
}

// Later ranks have more batches.
void uneven_batches_are_joined(const Group& group) {
  const auto net = net_on_gpu();
  DistributedDataParallel ddp{group, net, small()};
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<Batch> batches;
  for (int step = 0; step < 3 + group.rank(); ++step)
    batches.push_back(Batch::of_step(step, group.size()).part(group.rank(), group.size()));
  for (const Batch& batch : ddp.join(batches)) {
    optimizer.zero_grad();
    loss_of(ddp, batch).backward();
    optimizer.step();
  }
  for (const at::Tensor& parameter : net->parameters()) {
    at::Tensor from_rank_0 = parameter.detach().clone();
    group.broadcast(from_rank_0, 0).get();
    EXPECT_TRUE(at::equal(from_rank_0, parameter));
  }
}

struct Scenario {
  const char* name;
  std::function<void(const Group&, rpc::Agent&)> run;
};
const std::vector<Scenario> scenarios{
    {"Trains", [](const Group& group, rpc::Agent&) { trains(group); }},
    {"TrainsAStaticGraph", [](const Group& group, rpc::Agent&) { trains_a_static_graph(group); }},
    {"HooksKeepTheRanksEqual", [](const Group& group, rpc::Agent&) { hooks_keep_the_ranks_equal(group); }},
    {"MixedPrecisionTrains", [](const Group& group, rpc::Agent&) { mixed_precision_trains(group); }},
    {"AnInfiniteGradientIsFoundByAll",
     [](const Group& group, rpc::Agent&) { an_infinite_gradient_is_found_by_all(group); }},
    {"SyncBatchNormIsThatOfAllData",
     [](const Group& group, rpc::Agent&) { sync_batch_norm_is_that_of_all_data(group); }},
    {"SparseGradientsAreAveraged",
     [](const Group& group, rpc::Agent&) { sparse_gradients_are_averaged(group); }},
    {"APassAverages", a_pass_averages},
    {"StepsInBackward", [](const Group& group, rpc::Agent&) { steps_in_backward(group); }},
    {"UnevenBatchesAreJoined", [](const Group& group, rpc::Agent&) { uneven_batches_are_joined(group); }}};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }
std::string name_of(const ::testing::TestParamInfo<Scenario>& info) { return info.param.name; }

nccl::DevicesOptions real_devices(const std::shared_ptr<const nccl::Api>& api) {
  nccl::DevicesOptions options;
  options.load = [api] { return api; };
  return options;
}

// --- One rank ---

class OnOneGpu : public ::testing::TestWithParam<Scenario> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, OnOneGpu, ::testing::ValuesIn(scenarios), name_of);

TEST_P(OnOneGpu, OneRankPasses) {
  std::string why = "no GPU";
  const auto api = nccl::testing::gpus(why) >= 1 ? nccl::testing::library(why) : nullptr;
  if (api == nullptr) GTEST_SKIP() << why;
  Company company(
      1, Backend::memory, std::make_unique<test::InProcessJobStore>(), [&](int) { return real_devices(api); },
      nullptr, [](int) { return dist_autograd::layers(); });
  GetParam().run(company.groups({.timeout = 30s}).front(), company.agent(0));
}

// --- Two ranks, in a process each ---

TEST_P(OnOneGpu, DISABLED_Rank) {
  const auto process = collectives::testing::RankProcess::here();
  if (!process) GTEST_SKIP() << "started only by TwoRanksPass";
  process->run_in_group({.timeout = 30s}, dist_autograd::layers(), GetParam().run);
}

TEST_P(OnOneGpu, TwoRanksPass) {
  collectives::testing::RankProcesses ranks(std::string("Scenarios/OnOneGpu.DISABLED_Rank/") +
                                            GetParam().name);
  if (!ranks.trouble().empty()) GTEST_SKIP() << ranks.trouble();
  EXPECT_EQ(ranks.line(0), "passed");
  EXPECT_EQ(ranks.line(1), "passed");
}

}  // namespace
}  // namespace weft::data_parallel::distributed_data_parallel_gpu_test
