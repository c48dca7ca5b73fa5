#include <weft/parallel/data_parallel/optimizer_in_backward.h>

#include <weft/parallel/data_parallel/hooks/cast_hook.h>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/archives.h"

namespace weft::data_parallel::optimizer_in_backward_test {
namespace {

using namespace testing;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                        bool adam) {
  if (adam)
    return std::make_unique<torch::optim::AdamW>(parameters,
                                                 torch::optim::AdamWOptions(0.03).weight_decay(0.1));
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.03).momentum(0.9).weight_decay(0.1));
}

// Rank 0 leaves out the middle layer in odd steps, and all ranks in the last one of four.
at::Tensor loss_of(auto& forward, int step, int rank, at::ScalarType dtype = at::kDouble) {
  const Batch batch = Batch::of_step(step, 2).part(rank, 2);
  const bool all = step % 4 != 3 && (rank == 1 || step % 2 == 0);
  const at::Tensor output = forward.forward(batch.data.to(dtype), all);
  return torch::mse_loss(output.to(dtype), batch.target.to(dtype));
}

enum class Way { plain, after, cast_hook, low_precision };

class InBackward : public ::testing::TestWithParam<std::tuple<bool, Way>> {};
INSTANTIATE_TEST_SUITE_P(Ways, InBackward,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Way::plain, Way::after, Way::cast_hook,
                                                              Way::low_precision)));

TEST_P(InBackward, EqualsAStepAfterBackward) {
  const auto [adam, way] = GetParam();
  const at::ScalarType dtype = way == Way::low_precision ? at::kFloat : at::kDouble;
  Options options{.bucket_bytes = {200}, .overlap = way == Way::after ? Overlap::after : Overlap::group};
  if (way == Way::low_precision) options.mixed_precision.parameters = at::kBFloat16;
  on_ranks(2, Backend::memory, [&, adam = adam, way = way](const Group& group) {
    std::vector<std::vector<at::Tensor>> values;
    for (const bool in_backward : {false, true}) {
      auto net = std::make_shared<Net>(1, dtype);
      DistributedDataParallel ddp{group, net, options};
      if (way == Way::cast_hook) ddp.set_hook(std::make_shared<CastHook>(at::kBFloat16));
      std::optional<OptimizerInBackward> each;
      std::unique_ptr<torch::optim::Optimizer> one;
      if (in_backward) {
        each.emplace(ddp, [&](const at::Tensor& parameter) { return make_optimizer({parameter}, adam); });
      } else {
        one = make_optimizer(net->parameters(), adam);
      }
      for (int step = 0; step < 8; ++step) {
        if (step % 4 == 2) {
          const auto guard = ddp.no_sync();
          loss_of(ddp, step + 100, group.rank(), dtype).backward();
        }
        loss_of(ddp, step, group.rank(), dtype).backward();
        if (!in_backward) {
          one->step();
          one->zero_grad();
        }
        for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      }
      values.push_back(values_of(*net));
    }
    expect_close(values[0], values[1], 0);
  });
}

// The one rank waits for the reduction of the last layer before it computes the gradients of the middle
// layer.
TEST(InBackwardOfOne, StepsBeforeBackwardEnds) {
  on_ranks(1, Backend::memory, [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {1}, .overlap = Overlap::group}};
    const OptimizerInBackward optimizer(
        ddp, [](const at::Tensor& parameter) { return make_optimizer({parameter}, false); }, true);
    const at::Tensor before = net->last->bias.detach().clone();
    net->middle->weight.register_hook([&](const at::Tensor&) { ddp.group().barrier().get(); });
    bool stepped = false;
    net->first->weight.register_hook(
        [&](const at::Tensor&) { stepped = !at::equal(net->last->bias, before); });
    loss_of(ddp, 0, 0).backward();
    EXPECT_TRUE(stepped);
    for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(InBackwardOfTwo, TheLongestRankOfAJoinDeterminesTheParameters) {
  Net alone;
  const auto own = make_optimizer(alone.parameters(), false);
  for (int step = 0; step < 4; ++step) {
    own->zero_grad();
    for (int rank = step < 2 ? 0 : 1; rank < 2; ++rank) (loss_of(alone, 2 * step, rank) / 2).backward();
    own->step();
  }
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
    const OptimizerInBackward optimizer(
        ddp, [](const at::Tensor& parameter) { return make_optimizer({parameter}, false); });
    std::vector<int> steps = group.rank() == 0 ? std::vector{0, 2} : std::vector{0, 2, 4, 6};
    for (const int step : ddp.join(steps)) loss_of(ddp, step, group.rank()).backward();
    expect_close(values_of(*net), values_of(alone));
  });
}

TEST(InBackwardOfTwo, ContinuesFromASavedState) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    std::vector<std::vector<at::Tensor>> values;
    for (const bool interrupted : {false, true}) {
      auto net = std::make_shared<Net>();
      std::string saved;
      for (int part = 0; part < (interrupted ? 2 : 1); ++part) {
        DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
        OptimizerInBackward optimizer(
            ddp, [](const at::Tensor& parameter) { return make_optimizer({parameter}, true); });
        if (part == 1) test::load(optimizer, saved);
        for (int step = 2 * part; step < (interrupted ? 2 * part + 2 : 4); ++step)
          loss_of(ddp, step, group.rank()).backward();
        saved = test::saved(optimizer);
      }
      values.push_back(values_of(*net));
    }
    expect_close(values[0], values[1], 0);
  });
}

// The program steps the ignored parameter itself, with the gradient of its rank.
TEST(InBackwardOfTwo, AnIgnoredParameterIsNotStepped) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, Options{.ignored = {"last.bias"}}};
    const OptimizerInBackward optimizer(
        ddp, [](const at::Tensor& parameter) { return make_optimizer({parameter}, false); });
    const at::Tensor before = net->last->bias.detach().clone();
    loss_of(ddp, 0, group.rank()).backward();
    EXPECT_TRUE(at::equal(net->last->bias, before));
    torch::optim::SGD own(std::vector{net->last->bias}, 0.1);
    own.step();
    const auto biases = group.all_gather_object(net->last->bias.sum().item<double>()).get();
    EXPECT_NE(biases[0], biases[1]);
    const auto weights = group.all_gather_object(net->last->weight.sum().item<double>()).get();
    EXPECT_EQ(weights[0], weights[1]);
  });
}

}  // namespace
}  // namespace weft::data_parallel::optimizer_in_backward_test
