// The linear layers against torch::nn::Linear, alone and in a multilayer perceptron.
#include <weft/parallel/tensor_parallel/linear.h>

#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/mixture_of_experts.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>
#include <weft/parallel/training/autocast.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::linear_test {
namespace {

using namespace testing;

constexpr std::int64_t width = 12, hidden = 24, sequence = 12;

// A multilayer perceptron of LibTorch, and the same one split over ranks; equal seeds give equal values.
struct WholeMlp : torch::nn::Module {
  explicit WholeMlp(bool bias) {
    torch::manual_seed(7);
    up = register_module("up", torch::nn::Linear(torch::nn::LinearOptions(width, hidden).bias(bias)));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(hidden, width).bias(bias)));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
struct SplitMlp : torch::nn::Module {
  SplitMlp(const Group& group, bool bias, std::optional<std::int64_t> dim) {
    const at::Generator drawn = generator(7);
    up = register_module(
        "up",
        ColumnParallelLinear(group, width, hidden,
                             ColumnParallelOptions{.bias = bias, .sequence_dim = dim, .generator = drawn}));
    down = register_module(
        "down", RowParallelLinear(group, hidden, width,
                                  RowParallelOptions{.bias = bias, .sequence_dim = dim, .generator = drawn}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
};

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& weights) {
  return (output.pow(2) * weights).sum();
}

class Linears : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, Linears, up_to_four());

TEST_P(Linears, AMultilayerPerceptronEqualsTheWholeOne) {
  for (const bool bias : {true, false})
    for (const std::optional<std::int64_t> dim :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(0), std::optional<std::int64_t>(1),
          std::optional<std::int64_t>(-2)}) {
      WholeMlp whole(bias);
      const at::Tensor weights = numbers({sequence, sequence, width}, 3);
      expect_equal_training(
          groups, whole, [&](const Group& group) { return std::make_shared<SplitMlp>(group, bias, dim); },
          {sequence, sequence, width}, dim,
          [](std::vector<at::Tensor> parameters) { return torch::optim::Adam(std::move(parameters), 1e-2); },
          [&](const at::Tensor& output, const auto& mine) { return loss_of(output, mine(weights)); });
    }
}

TEST_P(Linears, LayersGatherAndSplitOnRequest) {
  torch::manual_seed(7);
  torch::nn::Linear first(width, hidden), second(hidden, width);
  first->to(at::kDouble);
  second->to(at::kDouble);
  const at::Tensor x = numbers({5, width}, 1).requires_grad_();
  const at::Tensor hidden_state = first(x), output = second(hidden_state);
  loss_of(output, numbers({5, width}, 2)).backward();
  on_ranks(groups, [&](const Group& group) {
    const at::Generator drawn = generator(7);
    ColumnParallelLinear column(group, width, hidden,
                                ColumnParallelOptions{.gather_output = true, .generator = drawn});
    RowParallelLinear row(group, hidden, width,
                          RowParallelOptions{.input_is_parallel = false, .generator = drawn});
    column->to(at::kDouble);
    row->to(at::kDouble);
    const at::Tensor own = x.detach().clone().requires_grad_();
    const at::Tensor middle = column(own), last = row(middle);
    loss_of(last, numbers({5, width}, 2)).backward();
    expect_close({middle, last, own.grad()}, {hidden_state, output, x.grad()});
    expect_parts(*column, *first);
    expect_parts(*row, *second);
  });
}

TEST_P(Linears, AForwardWithoutGradientsRunsNoBackward) {
  WholeMlp whole(true);
  const at::Tensor x = numbers({5, width}, 1), expected = whole.forward(x);
  on_ranks(groups, [&](const Group& group) {
    SplitMlp split(group, true, {});
    const at::NoGradGuard no_grad;
    const at::Tensor output = split.forward(x);
    EXPECT_FALSE(output.requires_grad());
    expect_close({output}, {expected.detach()});
  });
}

TEST_P(Linears, InputsMayHaveOneDimension) {
  on_ranks(groups, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(7)});
    const at::Tensor x = at::ones({width}).requires_grad_();
    column(x).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(column->weight.grad().sizes(), column->weight.sizes());
  });
}

TEST_P(Linears, FrozenWeightsAndInputsHaveNoGradient) {
  on_ranks(groups, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(7)});
    column(at::ones({2, width})).sum().backward();  // no reduction
    EXPECT_TRUE(column->weight.grad().defined());
    column->zero_grad();
    column->weight.requires_grad_(false);
    const at::Tensor x = at::ones({2, width}).requires_grad_();
    column(x).sum().backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_FALSE(column->weight.grad().defined());
    EXPECT_TRUE(column->bias.grad().defined());
  });
}

// Both engines run the same nodes.
TEST_P(Linears, ANodeExecutorHasTheGradientsOfBackward) {
  using namespace dist_autograd::testing;
  for (const bool defer : {false, true})
    on_ranks(groups, [&](const Group& group) {
      SplitMlp split(group, true, 1);
      const at::Tensor x = numbers({2, 3, width}, 1).requires_grad_();
      at::Tensor loss = split.forward(x).square().sum();
      MapSink sink;
      dist_autograd::NodeExecutor executor(sink, {.defer_weights = defer});
      executor.add_root(loss);
      executor.plan();
      executor.run();
      if (defer) executor.run_weights();
      EXPECT_TRUE(executor.complete());
      split.forward(x).square().sum().backward();
      std::vector<at::Tensor> leaves = split.parameters();
      leaves.push_back(x);
      for (const at::Tensor& leaf : leaves) expect_close({sink[leaf]}, {leaf.grad()});
    });
}

TEST_P(Linears, AnActivationCheckpointRunsTheCollectivesAgain) {
  on_ranks(groups, [&](const Group& group) {
    const auto split = std::make_shared<SplitMlp>(group, true, 1);
    std::vector<at::Tensor> outputs;
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool checkpoint : {false, true}) {
      const at::Tensor x = numbers({2, 3, width}, 1).requires_grad_();
      outputs.push_back(checkpoint ? dist_autograd::activation_checkpoint(*split, x) : split->forward(x));
      split->zero_grad();
      outputs.back().square().sum().backward();
      gradients.push_back({x.grad()});
      for (const at::Tensor& each : split->parameters()) gradients.back().push_back(each.grad().clone());
    }
    expect_close({outputs[0].detach()}, {outputs[1].detach()});
    expect_close(gradients[0], gradients[1]);
  });
}

TEST_P(Linears, AutocastComputesInTheNarrowType) {
  on_ranks(groups, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(7)});
    const at::Tensor x = at::ones({2, width}).requires_grad_();
    at::Tensor output;
    {
      const training::Autocast autocast(at::kCPU, at::kBFloat16);
      output = column(x);
    }
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    output.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(column->weight.grad().scalar_type(), at::kFloat);
  });
}

TEST_P(Linears, ARecordedBackwardIsRefused) {
  if (ranks == 1) return;  // on one rank the layer uses LibTorch's own product
  expect_refused(groups, ErrorKind::unsupported, {"create_graph", "conjugates.h"}, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(7)});
    const at::Tensor x = at::ones({2, width}).requires_grad_();
    torch::autograd::grad({column(x).sum()}, {x}, {}, std::nullopt, /*create_graph=*/true);
  });
}

TEST_P(Linears, SizesThatDoNotDivideAreRefused) {
  if (ranks == 1) return;
  expect_refused(groups, ErrorKind::invalid_argument,
                 {"ColumnParallelLinear: output features: 25", "expected a multiple of"},
                 [&](const Group& group) { ColumnParallelLinear(group, width, 25); });
  expect_refused(groups, ErrorKind::invalid_argument, {"RowParallelLinear: input features: 25"},
                 [&](const Group& group) { RowParallelLinear(group, 25, width); });
  expect_refused(
      groups, ErrorKind::invalid_argument, {"ColumnParallelLinear: output features: 1 "},
      [&](const Group& group) { ColumnParallelLinear(group, width, 3, ColumnParallelOptions{.blocks = 3}); });
}

TEST_P(Linears, AnInputOfAnotherWidthIsRefused) {
  expect_refused(groups, ErrorKind::invalid_argument, {"ColumnParallelLinear: the input has 5", "12"},
                 [&](const Group& group) {
                   ColumnParallelLinear column(group, width, hidden,
                                               ColumnParallelOptions{.generator = generator(7)});
                   column(at::ones({2, 5}));
                 });
}

// --- Two ranks ---

using TwoLinears = data_parallel::testing::OfRanks<2>;

TEST_F(TwoLinears, RanksThatConstructDifferentLayersAreRefused) {
  expect_refused(groups, ErrorKind::invalid_argument,
                 {"rank 0 ColumnParallelLinear(12, 24", "rank 1 ColumnParallelLinear(12, 26"},
                 [&](const Group& group) { ColumnParallelLinear(group, width, hidden + 2 * group.rank()); });
  expect_refused(groups, ErrorKind::invalid_argument, {"sequence_dim=1"}, [&](const Group& group) {
    RowParallelLinear(group, hidden, width,
                      RowParallelOptions{.sequence_dim = group.rank() == 0 ? std::optional<std::int64_t>(0)
                                                                           : std::optional<std::int64_t>(1)});
  });
}

// The ranks differ in their seeds, or in the numbers that they drew before.
TEST(ThreeLinears, RanksWithOtherInitialValuesAreRefused) {
  Company company(3, Backend::memory);
  const auto groups = company.groups();
  const auto seeded = [](const Group& group) { return generator(group.rank() == 1 ? 8 : 7); };
  const auto expect_differs = [&](auto make) {
    expect_refused(groups, ErrorKind::invalid_argument, {"of rank 0", "that of rank 1,", "manual_seed"},
                   make);
  };
  expect_differs([&](const Group& group) {
    ColumnParallelLinear(group, width, hidden, ColumnParallelOptions{.generator = seeded(group)});
  });
  expect_differs([&](const Group& group) {
    RowParallelLinear(group, hidden, width, RowParallelOptions{.generator = seeded(group)});
  });
  expect_differs([&](const Group& group) {
    VocabularyParallelEmbedding(group, hidden, width, VocabularyEmbeddingOptions{.generator = seeded(group)});
  });
  expect_differs([&](const Group& group) {
    MixtureOfExperts(group, width, MixtureOptions{.experts = 3, .generator = seeded(group)});
  });
  expect_differs([&](const Group& group) {
    at::Generator drawn = generator(7);
    if (group.rank() == 1) (void)at::rand({1}, drawn);
    ColumnParallelLinear(group, width, hidden, ColumnParallelOptions{.generator = drawn});
  });
}

TEST_F(TwoLinears, InputsThatDifferAreAnErrorOfTheGroup) {
  expect_refused(groups, ErrorKind::invalid_argument, {}, [&](const Group& group) {
    RowParallelLinear row(group, hidden, width, RowParallelOptions{.generator = generator(1)});
    row(at::ones({3 + group.rank(), hidden / 2}));
  });
}

TEST_F(TwoLinears, AnAbortOfOneRankFailsTheBackwardOfTheOther) {
  expect_refused(groups, ErrorKind::aborted, {abort_reason}, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(1)});
    const at::Tensor loss = column(at::ones({2, width}).requires_grad_()).sum();
    if (group.rank() == 1) abort_and_leave(group);
    loss.backward();
  });
}

TEST_F(TwoLinears, TheLossOfARankFailsTheForwardOfTheOther) {
  const Group left = groups[0];
  groups.clear();
  std::thread ends([&] { company.end(1); });
  const auto error = error_of([&] { RowParallelLinear(left, hidden, width); });
  ends.join();
  ASSERT_TRUE(error);
  EXPECT_TRUE(error->kind() == ErrorKind::peer_lost || error->kind() == ErrorKind::shut_down)
      << error->what();
}

// The first product of rank 0's backward computes the input's gradient, and the second one the weight's
// gradient. Rank 1 takes part in the reduction only when rank 0 is at the second product. Rank 0 continues
// only when rank 1 has completed the reduction.
TEST_F(TwoLinears, TheReductionOfTheInputGradientRunsNextToTheWeightGradient) {
  std::promise<void> computes_weight, reduced;
  auto computing = computes_weight.get_future(), reduction = reduced.get_future();
  bool overlapped = false;
  on_ranks(groups, [&](const Group& group) {
    ColumnParallelLinear column(group, width, hidden, ColumnParallelOptions{.generator = generator(1)});
    const at::Tensor loss = column(at::ones({2, width}).requires_grad_()).sum();
    if (group.rank() == 1) {
      EXPECT_TRUE(is_set(computing));
      loss.backward();
      reduced.set_value();
      return;
    }
    const BeforeOperator second("aten::mm", 2, [&] {
      computes_weight.set_value();
      overlapped = is_set(reduction);
    });
    loss.backward();
  });
  EXPECT_TRUE(overlapped);
}

}  // namespace
}  // namespace weft::tensor_parallel::linear_test
