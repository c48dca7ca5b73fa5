#include <weft/parallel/data_parallel/sync_batch_norm.h>

#include <numeric>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::sync_batch_norm_test {
namespace {

using namespace testing;

constexpr int ranks = 3;

// Rows of each rank: different numbers, and none on the last one.
std::int64_t rows_of(int rank) {
  return std::array<std::int64_t, ranks>{4, 3, 0}[static_cast<std::size_t>(rank)];
}

at::Tensor whole_input(at::IntArrayRef rest, at::ScalarType dtype = at::kDouble) {
  std::vector<std::int64_t> shape{7};
  shape.insert(shape.end(), rest.begin(), rest.end());
  auto generator = at::detail::createCPUGenerator(5);
  return (at::randn(shape, generator, at::kDouble) * 3 + 10).to(dtype);
}

at::Tensor part(const at::Tensor& whole, int rank) {
  std::int64_t begin = 0;
  for (int before = 0; before < rank; ++before) begin += rows_of(before);
  return whole.narrow(0, begin, rows_of(rank));
}

class SyncedNorm : public OfRanks<ranks> {};

torch::nn::BatchNormOptions options_of(std::optional<double> momentum = 0.1) {
  return torch::nn::BatchNormOptions(2).momentum(momentum);
}

TEST_F(SyncedNorm, EqualsABatchNormOverTheWholeBatch) {
  for (const auto& rest : {std::vector<std::int64_t>{2}, {2, 3}, {2, 2, 2}})
    for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
      const at::Tensor whole = whole_input(rest), weights = whole_input(rest).sin();
      torch::nn::BatchNorm1d alone(options_of(momentum));
      alone->to(at::kDouble);
      at::Tensor x = whole.clone().requires_grad_();
      const auto forward = [&](torch::nn::BatchNorm1d& norm, const at::Tensor& input) {
        const at::Tensor flat = input.dim() == 4 ? input.flatten(2) : input;
        return norm(flat).view_as(input);
      };
      at::Tensor expected;
      for (int i = 0; i < 2; ++i) expected = forward(alone, x);
      (expected * weights).sum().backward();
      on_ranks(groups, [&](const Group& group) {
        SyncBatchNorm norm(options_of(momentum), group);
        norm->to(at::kDouble);
        at::Tensor own = part(whole, group.rank()).clone().requires_grad_();
        at::Tensor output;
        for (int i = 0; i < 2; ++i) output = norm(own);
        expect_close({output, norm->running_mean, norm->running_var},
                     {part(expected, group.rank()), alone->running_mean, alone->running_var});
        (output * part(weights, group.rank())).sum().backward();
        expect_close({own.grad()}, {part(x.grad(), group.rank())});
        std::vector<at::Tensor> sums{norm->weight.grad().clone(), norm->bias.grad().clone()};
        group.all_reduce(sums).get();
        expect_close(sums, {alone->weight.grad(), alone->bias.grad()});
        norm->eval();
        alone->eval();
        expect_close({norm(own)}, {part(forward(alone, whole), group.rank())});
      });
    }
}

TEST_F(SyncedNorm, HalfPrecisionInputsHaveStatisticsInFloat32) {
  const at::Tensor whole = whole_input({2}, at::kHalf);
  torch::nn::BatchNorm1d alone(options_of());
  const at::Tensor expected = alone(whole.to(at::kFloat));
  on_ranks(groups, [&](const Group& group) {
    SyncBatchNorm norm(options_of(), group);
    const at::Tensor output = norm(part(whole, group.rank()));
    EXPECT_EQ(output.scalar_type(), at::kHalf);
    expect_close({output.to(at::kFloat)}, {part(expected, group.rank())}, 2e-3);
    expect_close({norm->running_var}, {alone->running_var}, 1e-5);
  });
}

TEST_F(SyncedNorm, WithoutWeightsItHasNoWeightGradients) {
  on_ranks(groups, [&](const Group& group) {
    SyncBatchNorm norm(options_of().affine(false), group);
    at::Tensor own = at::ones({2, 2}, at::kDouble).mul_(group.rank()).requires_grad_();
    norm(own).square().sum().backward();
    EXPECT_TRUE(own.grad().defined());
  });
}

TEST_F(SyncedNorm, RefusesAnotherNumberOfChannels) {
  on_ranks(groups, [&](const Group& group) {
    SyncBatchNorm norm(options_of(), group);
    EXPECT_EQ(test::kind_of([&] { norm(at::ones({2, 3})); }), ErrorKind::invalid_argument);
    EXPECT_EQ(test::kind_of([&] { norm(at::ones({2})); }), ErrorKind::invalid_argument);
  });
}

// As LibTorch's BatchNorm does for an empty batch.
TEST_F(SyncedNorm, WithoutASampleOnAnyRankItKeepsItsStatistics) {
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
    torch::nn::BatchNorm1d alone(options_of(momentum));
    (void)alone(at::empty({0, 2}));
    on_ranks(groups, [&](const Group& group) {
      SyncBatchNorm norm(options_of(momentum), group);
      const at::Tensor input = at::empty({0, 2}).set_requires_grad(true);
      norm(input).sum().backward();
      expect_close({norm->running_mean, norm->running_var, norm->num_batches_tracked},
                   {alone->running_mean, alone->running_var, alone->num_batches_tracked}, 0);
      expect_close({norm->weight.grad(), norm->bias.grad()}, {at::zeros({2}), at::zeros({2})}, 0);
    });
  }
}

struct Inner : torch::nn::Module {
  Inner() {
    layers->push_back(torch::nn::BatchNorm1d(2));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

TEST_F(SyncedNorm, ConversionReachesNestedSequences) {
  on_ranks(groups, [&](const Group& group) {
    torch::nn::Sequential layers(torch::nn::Linear(2, 2), std::make_shared<Inner>(),
                                 torch::nn::BatchNorm1d(2));
    const auto before = layers->named_parameters();
    EXPECT_EQ(convert_sync_batch_norm(*layers, group), (std::vector<std::string>{"1.layers.0", "2"}));
    const auto after = layers->named_parameters();
    ASSERT_EQ(after.size(), before.size());
    for (const auto& entry : after) EXPECT_TRUE(entry.value().is_same(before[entry.key()])) << entry.key();
    // Each rank's rows are equal: only statistics over the ranks make them differ.
    EXPECT_GT(layers->forward(at::ones({2, 2}) * group.rank()).abs().sum().item<double>(), 0);
    EXPECT_EQ(layers->named_buffers()["2.num_batches_tracked"].item<std::int64_t>(), 1);
  });
}

TEST_F(SyncedNorm, ConversionRefusesMembersOfOtherModules) {
  struct Member : torch::nn::Module {
    Member() { norm = register_module("norm", torch::nn::BatchNorm1d(2)); }
    torch::nn::BatchNorm1d norm{nullptr};
  };
  Member module;
  expect_error([&] { convert_sync_batch_norm(module, groups[0]); }, ErrorKind::failed_precondition,
               {"norm is a member"});
}

// Under a DistributedDataParallel, joined: rank 0 has one batch less.
TEST_F(SyncedNorm, RanksWithoutABatchTakePart) {
  const auto norm_groups = company.groups({.name = "norms"});
  on_ranks(groups, [&](const Group& group) {
    const Group& of_norms = norm_groups[static_cast<std::size_t>(group.rank())];
    torch::nn::Sequential layers(torch::nn::Linear(2, 2), SyncBatchNorm(options_of(), of_norms),
                                 torch::nn::ReLU(), torch::nn::Linear(2, 3),
                                 SyncBatchNorm(torch::nn::BatchNormOptions(3), of_norms));
    DistributedDataParallel ddp{group, layers, Options{.bucket_bytes = {16}, .overlap = Overlap::group}};
    SyncBatchNorms norms(*layers);
    std::vector<at::Tensor> batches(static_cast<std::size_t>(2 + group.rank()));
    for (std::size_t i = 0; i < batches.size(); ++i) batches[i] = at::randn({4, 2});
    for (auto& batch : ddp.join(batches, {}, {&norms})) {
      layers->zero_grad();
      ddp.forward(batch).square().sum().backward();
    }
    const auto means =
        of_norms.all_gather_object(layers->named_buffers()["1.running_mean"].sum().item<float>()).get();
    EXPECT_EQ(means, std::vector<float>(3, means[0]));
  });
}

}  // namespace
}  // namespace weft::data_parallel::sync_batch_norm_test
