#include <weft/parallel/tensor_parallel/dropout.h>

#include <weft/dist_autograd/activation_checkpoint.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::dropout_test {
namespace {

using namespace testing;

class Dropouts : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, Dropouts, up_to_four());

TEST_P(Dropouts, ReplicatedRanksAgreeAndSplitRanksDiffer) {
  std::vector<at::Tensor> whole(groups.size()), split(groups.size());
  on_ranks(groups, [&](const Group& group) {
    DropoutGenerators generators(group, 5);
    const auto rank = static_cast<std::size_t>(group.rank());
    split[rank] = dropout(at::ones({1000}), 0.25, generators.split());
    whole[rank] = dropout(at::ones({1000}), 0.25, generators.whole());
  });
  for (std::size_t rank = 0; rank < groups.size(); ++rank) {
    EXPECT_TRUE(at::equal(whole[rank], whole[0]));
    EXPECT_FALSE(at::equal(split[rank], whole[0]));
    EXPECT_NEAR(split[rank].mean().item<double>(), 1, 0.1);
    EXPECT_NEAR(split[rank].max().item<double>(), 1 / 0.75, 1e-6);
    for (std::size_t other = 0; other < rank; ++other) EXPECT_FALSE(at::equal(split[rank], split[other]));
  }
}

TEST_P(Dropouts, EqualThoseOfLibTorchWithTheSameSeed) {
  DropoutGenerators generators(groups[0], 5);
  const at::Tensor x = numbers({40, 7}, 1).requires_grad_(), like = x.detach().clone().requires_grad_();
  const at::Tensor output = dropout(x, 0.3, generators.whole());
  output.square().sum().backward();
  torch::manual_seed(5);
  const at::Tensor expected = torch::dropout(like, 0.3, true);
  expected.square().sum().backward();
  expect_close({output.detach(), x.grad()}, {expected.detach(), like.grad()});
  EXPECT_TRUE(at::equal(dropout(x, 0.3, generators.whole(), /*training=*/false), x));
}

TEST_P(Dropouts, AStateRepeatsItsNumbers) {
  DropoutGenerators generators(groups[0], 5);
  (void)dropout(at::ones({10}), 0.5, generators.split());
  const auto state = generators.state();
  const auto draw = [&] {
    return at::stack(
        {dropout(at::ones({64}), 0.5, generators.split()), dropout(at::ones({64}), 0.5, generators.whole())});
  };
  const at::Tensor first = draw(), second = draw();
  EXPECT_FALSE(at::equal(first, second));
  generators.set_state(state);
  EXPECT_TRUE(at::equal(draw(), first));
}

TEST_P(Dropouts, ARecomputedForwardDropsTheSameElements) {
  struct Block : torch::nn::Module {
    explicit Block(const Group& group) : generators(group, 5) {}
    at::Tensor forward(const at::Tensor& x) {
      return dropout(dropout(x, 0.5, generators.split()).tanh(), 0.5, generators.whole()).square();
    }
    DropoutGenerators generators;
  };
  on_ranks(groups, [&](const Group& group) {
    std::vector<at::Tensor> results, after;
    for (const bool checkpoint : {false, true}) {
      const auto block = std::make_shared<Block>(group);
      const at::Tensor x = numbers({64}, 1).requires_grad_();
      const at::Tensor output =
          checkpoint ? dist_autograd::activation_checkpoint(*block, x, block->generators.both())
                     : block->forward(x);
      // The second run of the forward does not repeat numbers that were drawn after the first run.
      const at::Tensor between = dropout(x.detach(), 0.5, block->generators.split());
      output.sum().backward();
      results.insert(results.end(), {output.detach(), x.grad(), between});
      after.push_back(dropout(x.detach(), 0.5, block->generators.split()));
    }
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[i], results[3 + i])) << i;
    EXPECT_TRUE(at::equal(after[0], after[1]));
  });
}

TEST_P(Dropouts, ProbabilitiesOutOfRangeAreRefused) {
  DropoutGenerators generators(groups[0], 5);
  for (const double bad : {-0.1, 1.0, std::nan("")})
    EXPECT_EQ(test::kind_of([&] { dropout(at::ones({1}), bad, generators.whole()); }),
              ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::tensor_parallel::dropout_test
