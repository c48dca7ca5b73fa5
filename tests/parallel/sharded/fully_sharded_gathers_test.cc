// FullyShardedDataParallel::gather() between forward and backward, and changes of gathered parameters.
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_gathers_test {
namespace {

using collectives::testing::Company;
using data_parallel::testing::Batch;
using data_parallel::testing::expect_close;
using data_parallel::testing::on_ranks;
using testing::expect_gradients;
using testing::loss_of;
using testing::Model;
using testing::values_of;

constexpr int ranks = 2;

TEST(FullyShardedGathers, AreAllowedBetweenForwardAndBackward) {
  for (const bool reshard : {true, false}) {
    Model whole;
    const Batch batch = Batch::of_step(0, ranks);
    (2 * loss_of(whole.forward(batch.data), batch.target)).backward();
    Company company(ranks);
    on_ranks(company.groups(), [&](const collectives::Group& group) {
      const auto model = std::make_shared<Model>();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
      const Batch part = batch.part(group.rank(), ranks);
      const auto loss = [&] { return loss_of(fsdp.forward(part.data), part.target); };
      const auto gather = [&] {
        const auto all = fsdp.gather();
        expect_close(values_of(*model), values_of(Model()), 0);
      };
      const at::Tensor first = loss();
      gather();
      const at::Tensor second = loss();
      gather();
      (first + second).backward();
      gather();
      expect_gradients(fsdp, whole);
    });
  }
}

class GatheredChanges : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GatheredChanges,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST_P(GatheredChanges, AreKeptOnRequest) {
  const auto [count, narrow] = GetParam();
  Company company(count);
  on_ranks(company.groups(), [&, narrow = narrow](const collectives::Group& group) {
    const auto model = std::make_shared<Model>();
    Options options{.block = "layers.*"};
    if (narrow) options.mixed_precision.parameters = at::kFloat;
    FullyShardedDataParallel fsdp{group, model, options};
    Model expected;
    const auto expect_parts = [&] {
      for (const ParameterSlice& slice : fsdp.units().slices())
        EXPECT_TRUE(at::equal(slice.leaf.tensor, expected.named_parameters()[slice.parameter].flatten().slice(
                                                     0, slice.begin, slice.end)))
            << slice.leaf.name;
    };
    const auto change = [](Model& of) {
      of.apply([](torch::nn::Module& module) {
        const at::NoGradGuard no_grad;
        if (auto* const norm = module.as<torch::nn::LayerNormImpl>()) norm->bias.fill_(0.25);
      });
      const at::NoGradGuard no_grad;
      of.stem->weight[4][4] = 2;
      of.head->extra->bias.mul_(0);
    };
    {
      const auto whole = fsdp.gather();
      change(*model);
    }
    expect_parts();
    {
      const auto outer = fsdp.gather();
      const auto inner = fsdp.gather(Changes::kept);
      change(*model);
    }
    change(expected);
    expect_parts();
    const Batch batch = Batch::of_step(0, 1);
    const at::NoGradGuard no_grad;
    expect_close({fsdp.forward(batch.data).to(at::kDouble)}, {expected.forward(batch.data)},
                 narrow ? 1e-5 : 1e-10);
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_gathers_test
