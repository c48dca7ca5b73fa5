// NodeExecutor against LibTorch's engine: shapes of graphs, kinds of roots, kinds of gradients.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <c10/util/irange.h>

namespace weft::dist_autograd::engine_graph_test {
namespace {

using testing::expect_as_oracle;
using testing::expect_identical;
using testing::Graph;
using testing::leaf;
using testing::numbers;

TEST(EngineGraph, ALeafAsRoot) {
  expect_as_oracle([] {
    auto x = leaf({4}, 1);
    return Graph{{x, x.sin()}, {numbers({4}, 2), numbers({4}, 3)}, {x}};
  });
}

TEST(EngineGraph, BroadcastsAndCastsBetweenNodes) {
  expect_as_oracle([] {
    auto x = leaf({3, 1}, 1), row = leaf({4}, 2), single = numbers({2}, 3).to(at::kFloat).requires_grad_();
    auto y = (x * row).sum() * single.to(at::kDouble).sum() + (x + row).to(at::kFloat).sum();
    return Graph{{y.to(at::kDouble)}, {{}}, {x, row, single}};
  });
}

TEST(EngineGraph, ComplexGradients) {
  expect_as_oracle([] {
    auto x = torch::complex(numbers({4}, 1), numbers({4}, 2)).requires_grad_();
    auto real = leaf({4}, 3);
    auto y = (x * x.conj() * real) * x;
    return Graph{
        {y, torch::real(y)}, {torch::complex(numbers({4}, 4), numbers({4}, 5)), numbers({4}, 6)}, {x, real}};
  });
}

TEST(EngineGraph, SparseGradientAloneAndSummed) {
  auto rows = torch::tensor({3, 1, 3, 0}, at::kLong);
  auto other = torch::tensor({0, 7, 7}, at::kLong);
  // Sparse alone; sparse + sparse; sparse + dense in either order.
  for (int kind : c10::irange(4)) {
    expect_as_oracle([=] {
      auto table = leaf({10, 4}, 1);
      auto lookup = [&](const at::Tensor& at) {
        return torch::embedding(table, at, -1, false, /*sparse=*/true);
      };
      auto y = kind == 3 ? table.sin().sum() : lookup(rows).pow(2).sum();
      if (kind == 1) y = y + lookup(other).sin().sum();
      if (kind == 2) y = y + table.cos().sum();
      if (kind == 3) y = y + lookup(rows).sum();
      return Graph{{y}, {{}}, {table}};
    });
  }
}

TEST(EngineGraph, RealModules) {
  expect_as_oracle([] {
    torch::manual_seed(7);
    torch::nn::Sequential net(torch::nn::Conv2d(2, 3, 3), torch::nn::BatchNorm2d(3), torch::nn::ReLU(),
                              torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({27})),
                              torch::nn::Linear(27, 5));
    net->to(at::kDouble);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 4).num_layers(2));
    lstm->to(at::kDouble);
    auto h = net->forward(numbers({6, 2, 8, 8}, 1)).view({3, 2, 5});
    auto loss = torch::mse_loss(std::get<0>(lstm->forward(h)), numbers({3, 2, 4}, 2));
    auto leaves = net->parameters();
    for (const auto& parameter : lstm->parameters()) leaves.push_back(parameter);
    return Graph{{loss}, {{}}, leaves};
  });
}

TEST(EngineGraph, ViewsAndInPlaceOperations) {
  expect_as_oracle([] {
    auto x = leaf({4, 4}, 1);
    auto y = x.sin();
    y.select(0, 1).mul_(2.0);
    y.narrow(1, 1, 2).add_(x.narrow(1, 0, 2));
    return Graph{{y.t().reshape({-1}).cumsum(0)}, {numbers({16}, 2)}, {x}};
  });
}

TEST(EngineGraph, ADeepChain) {
  expect_as_oracle([] {
    auto x = leaf({2}, 1);
    auto y = x;
    for (int i = 0; i < 50'000; ++i) y = y * 1.0001;
    return Graph{{y.sum()}, {{}}, {x}};
  });
}

// The results equal those of the oracle whether or not the passed gradient is used again, and the passed
// gradient does not change.
TEST(EngineGraph, GradientsPassedInAreNotChanged) {
  auto x = leaf({3}, 1);
  auto y = x.view({3});
  auto gradient = numbers({3}, 2);
  auto copy = gradient.clone();
  testing::own_backward({{y, y, y}, {gradient, gradient, gradient}, {x}});
  expect_identical(gradient, copy, "the gradient passed in");
}

TEST(EngineGraph, WriteGradGivesBothTheSinkAndTheLeaf) {
  for (bool again : {false, true}) {
    auto build = [] {
      auto w = leaf({4, 4}, 1);
      auto y = numbers({4, 4}, 2).mm(w).mm(w);
      return Graph{{y}, {numbers({4, 4}, 3)}, {w}};
    };
    auto expected = build(), actual = build();
    if (again) {
      expected.leaves[0].mutable_grad() = numbers({4, 4}, 4);
      actual.leaves[0].mutable_grad() = numbers({4, 4}, 4);
    }
    testing::oracle_backward(expected);
    auto sink = testing::own_backward(actual, {.write_grad = true});
    expect_identical(actual.leaves[0].grad(), expected.leaves[0].grad(), ".grad");
    auto alone = build();
    testing::oracle_backward(alone);
    expect_identical(sink[actual.leaves[0]], alone.leaves[0].grad(), "the pass's gradient");
    // Neither gradient is a view of the other.
    actual.leaves[0].mutable_grad().zero_();
    expect_identical(sink[actual.leaves[0]], alone.leaves[0].grad(),
                     "the pass's gradient, .grad being changed");
  }
}

}  // namespace
}  // namespace weft::dist_autograd::engine_graph_test
