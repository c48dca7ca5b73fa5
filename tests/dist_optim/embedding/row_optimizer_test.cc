// Row optimizers. If a dense embedding uses all rows in every step, they are compared with LibTorch's
// optimizers. If rows are used only in some steps, they are compared with the formula in double precision.
// Also tests initial values.
#include <weft/dist_optim/embedding/row_initializer.h>
#include <weft/dist_optim/embedding/row_optimizer.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/errors.h"

namespace weft::dist_optim::embedding_row_optimizer_test {
namespace {

constexpr std::int64_t rows = 5, dimension = 3;

struct Rows {
  explicit Rows(const RowOptimizer& o, const at::Tensor& initial)
      : optimizer(o), values(initial.clone()), state(at::full({rows, width()}, 77.0, at::kFloat)) {
    for (std::int64_t i = 0; i < rows; ++i) optimizer.begin(state[i].data_ptr<float>(), dimension);
  }
  std::int64_t width() const { return static_cast<std::int64_t>(optimizer.state_size(dimension)); }
  void update(std::int64_t row, const at::Tensor& gradient) {
    optimizer.update(values[row].data_ptr<float>(), state[row].data_ptr<float>(), gradient.data_ptr<float>(),
                     dimension);
  }
  RowOptimizer optimizer;
  at::Tensor values, state;
};

template <class Optimizer, class Options>
void expect_like_libtorch(RowOptimizer optimizer, Options options) {
  torch::manual_seed(3);
  const at::Tensor initial = torch::randn({rows, dimension});
  Rows ours(optimizer, initial);
  at::Tensor theirs = initial.clone().set_requires_grad(true);
  Optimizer oracle(std::vector{theirs}, options);
  for (int step = 0; step < 25; ++step) {
    const at::Tensor gradient = torch::randn({rows, dimension});
    for (std::int64_t i = 0; i < rows; ++i) ours.update(i, gradient[i].contiguous());
    theirs.mutable_grad() = gradient.clone();
    oracle.step();
    ASSERT_TRUE(torch::allclose(ours.values, theirs.detach(), 1e-5, 1e-6)) << step;
  }
}

TEST(EmbeddingRowOptimizer, SgdEqualsLibTorch) {
  RowOptimizer sgd = RowOptimizer::sgd(0.1);
  expect_like_libtorch<torch::optim::SGD>(sgd, torch::optim::SGDOptions(0.1));
  sgd.weight_decay = 0.05;
  expect_like_libtorch<torch::optim::SGD>(sgd, torch::optim::SGDOptions(0.1).weight_decay(0.05));
}

TEST(EmbeddingRowOptimizer, AdagradEqualsLibTorch) {
  RowOptimizer adagrad = RowOptimizer::adagrad(0.1);
  expect_like_libtorch<torch::optim::Adagrad>(adagrad, torch::optim::AdagradOptions(0.1));
  adagrad.weight_decay = 0.05;
  adagrad.initial_accumulator = 0.3;
  expect_like_libtorch<torch::optim::Adagrad>(
      adagrad, torch::optim::AdagradOptions(0.1).weight_decay(0.05).initial_accumulator_value(0.3));
}

TEST(EmbeddingRowOptimizer, AdamEqualsLibTorch) {
  RowOptimizer adam = RowOptimizer::adam(0.02, 0.8, 0.95, 1e-6);
  const auto options = torch::optim::AdamOptions(0.02).betas({0.8, 0.95}).eps(1e-6);
  expect_like_libtorch<torch::optim::Adam>(adam, options);
  adam.weight_decay = 0.05;
  expect_like_libtorch<torch::optim::Adam>(adam, torch::optim::AdamOptions(options).weight_decay(0.05));
}

// Row i is used only in every (i + 1)-th step. Its values depend only on its own steps.
template <class Formula>
void expect_lazy(RowOptimizer optimizer, Formula formula) {
  torch::manual_seed(4);
  const at::Tensor initial = torch::randn({rows, dimension});
  Rows ours(optimizer, initial);
  std::vector<std::vector<at::Tensor>> gradients(rows);
  for (int step = 0; step < 30; ++step)
    for (std::int64_t i = 0; i < rows; ++i)
      if (step % (i + 1) == 0) {
        gradients[static_cast<std::size_t>(i)].push_back(torch::randn({dimension}));
        ours.update(i, gradients[static_cast<std::size_t>(i)].back());
      }
  for (std::int64_t i = 0; i < rows; ++i) {
    at::Tensor want = initial[i].to(at::kDouble);
    formula(want, gradients[static_cast<std::size_t>(i)]);
    EXPECT_TRUE(torch::allclose(ours.values[i].to(at::kDouble), want, 1e-5, 1e-6)) << i;
  }
}

TEST(EmbeddingRowOptimizer, AdamIsLazy) {
  expect_lazy(RowOptimizer::adam(0.02, 0.8, 0.95, 1e-6),
              [](at::Tensor& w, const std::vector<at::Tensor>& gradients) {
                at::Tensor m = at::zeros_like(w), v = at::zeros_like(w);
                for (std::size_t t = 1; t <= gradients.size(); ++t) {
                  const at::Tensor g = gradients[t - 1].to(at::kDouble);
                  m = 0.8 * m + 0.2 * g;
                  v = 0.95 * v + 0.05 * g * g;
                  const double a = 1 - std::pow(0.8, t), b = 1 - std::pow(0.95, t);
                  w = w - 0.02 * (m / a) / ((v / b).sqrt() + 1e-6);
                }
              });
}

TEST(EmbeddingRowOptimizer, RowWiseAdagradKeepsOneSumForEachRow) {
  EXPECT_EQ(RowOptimizer::row_wise_adagrad(0.1).state_size(64), 1u);
  RowOptimizer optimizer = RowOptimizer::row_wise_adagrad(0.1, 1e-8);
  optimizer.weight_decay = 0.01;
  expect_lazy(optimizer, [](at::Tensor& w, const std::vector<at::Tensor>& gradients) {
    double sum = 0;
    for (const at::Tensor& one : gradients) {
      const at::Tensor g = one.to(at::kDouble) + 0.01 * w;
      sum += g.square().mean().item<double>();
      w = w - 0.1 * g / (std::sqrt(sum) + 1e-8);
    }
  });
}

TEST(EmbeddingRowOptimizer, RefusesInvalidOptions) {
  const auto kind = [](const RowOptimizer& optimizer) {
    return test::kind_of([&] { return optimizer.check(), 0; });
  };
  EXPECT_EQ(kind(RowOptimizer::adam(0.1)), std::nullopt);
  EXPECT_EQ(kind(RowOptimizer::sgd(-1)), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind(RowOptimizer::sgd(std::nan(""))), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind(RowOptimizer::adam(0.1, 1.0)), rpc::ErrorKind::invalid_argument);
}

TEST(EmbeddingRowInitializer, DependsOnSeedIdAndColumnAlone) {
  constexpr std::size_t wide = 64;
  for (const auto kind : {RowInitializer::Kind::uniform, RowInitializer::Kind::normal}) {
    const RowInitializer initializer{kind, 0.5, 9};
    std::vector<float> row(wide), again(wide), narrow(8), other(wide), seeded(wide);
    initializer.fill(42, row.data(), wide);
    initializer.fill(43, other.data(), wide);
    initializer.fill(42, again.data(), wide);
    initializer.fill(42, narrow.data(), 8);
    RowInitializer{kind, 0.5, 10}.fill(42, seeded.data(), wide);
    EXPECT_EQ(row, again);
    EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), row.begin()));
    EXPECT_NE(row, other);
    EXPECT_NE(row, seeded);
  }
}

TEST(EmbeddingRowInitializer, HasItsDistribution) {
  constexpr std::int64_t ids = 2000, wide = 16;
  at::Tensor all = at::empty({ids, wide});
  const auto fill = [&](RowInitializer initializer) {
    for (std::int64_t id = 0; id < ids; ++id) initializer.fill(id, all[id].data_ptr<float>(), wide);
  };
  fill({RowInitializer::Kind::uniform, 0.5, 1});
  EXPECT_NEAR(all.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(all.std().item<double>(), 0.5 / std::sqrt(3), 0.01);
  EXPECT_LE(all.abs().max().item<double>(), 0.5);
  fill({RowInitializer::Kind::normal, 0.5, 1});
  EXPECT_NEAR(all.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(all.std().item<double>(), 0.5, 0.02);
  EXPECT_GT(all.abs().max().item<double>(), 1.5);
  fill({RowInitializer::Kind::zeros, 0.5, 1});
  EXPECT_EQ(all.abs().max().item<double>(), 0);
}

}  // namespace
}  // namespace weft::dist_optim::embedding_row_optimizer_test
