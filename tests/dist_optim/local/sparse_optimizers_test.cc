// Compares SparseAdam and RowwiseAdagrad with the same formulas, computed row by row.
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <cmath>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace weft::dist_optim::local_sparse_optimizers_test {
namespace {

constexpr std::int64_t rows = 5, width = 3;

at::Tensor numbers(at::IntArrayRef shape, double phase) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble) * 1.3 + phase).reshape(shape);
}

// Returns the gradient of step t: rows t and t+2 (mod 5), the first one in two parts.
struct Step {
  std::vector<std::int64_t> touched;
  at::Tensor dense, sparse;
};
Step step_number(int t) {
  const std::int64_t first = t % rows, second = (t + 2) % rows;
  const at::Tensor values = numbers({3, width}, t);
  Step step{{first, second}, at::zeros({rows, width}, at::kDouble), {}};
  step.dense[first] = values[0] + values[2];
  step.dense[second] = values[1];
  step.sparse = torch::sparse_coo_tensor(at::tensor({first, second, first}, at::kLong).unsqueeze(0), values,
                                         {rows, width});
  return step;
}

// A weight that one of these optimizers steps, and the rows that the formula gives.
struct Case {
  explicit Case(const OptimizerSpec& spec)
      : weight(numbers({rows, width}, 9).requires_grad_()), leaves({{"weight", weight}}, spec) {
    want = weight.detach().clone();
  }
  void expect_equal() const {
    EXPECT_LE((weight.detach() - want).abs().max().item<double>(), 1e-12) << weight << want;
  }
  at::Tensor weight, want;
  ShadowLeaves leaves;
};

void adam_row(at::Tensor p, at::Tensor m, at::Tensor v, const at::Tensor& g, int t, double lr) {
  m.mul_(0.9).add_(g, 0.1);
  v.mul_(0.99).add_(g * g, 0.01);
  const double size = lr * std::sqrt(1 - std::pow(0.99, t)) / (1 - std::pow(0.9, t));
  p.sub_(size * m / (v.sqrt() + 1e-6));
}

const SparseAdamOptions adam_options = SparseAdamOptions(0.1).beta1(0.9).beta2(0.99).eps(1e-6);

TEST(SparseAdam, TouchesOnlyTheRowsOfAGradient) {
  Case one(adam_options);
  at::Tensor m = at::zeros({rows, width}, at::kDouble), v = m.clone();
  for (int t = 1; t <= 8; ++t) {
    const Step step = step_number(t);
    one.leaves.step({{0, step.sparse}});
    for (std::int64_t row : step.touched) adam_row(one.want[row], m[row], v[row], step.dense[row], t, 0.1);
    one.expect_equal();
  }
}

TEST(SparseAdam, ADenseGradientIsOneOfEveryRowAndAnEmptyOneCounts) {
  Case one(adam_options);
  at::Tensor m = at::zeros({rows, width}, at::kDouble), v = m.clone();
  one.leaves.step({{0, torch::sparse_coo_tensor(at::empty({1, 0}, at::kLong),
                                                at::empty({0, width}, at::kDouble), {rows, width})}});
  one.expect_equal();
  for (int t = 2; t <= 4; ++t) {
    const at::Tensor gradient = numbers({rows, width}, t);
    one.leaves.step({{0, gradient}});
    adam_row(one.want, m, v, gradient, t, 0.1);
    one.expect_equal();
  }
}

TEST(RowwiseAdagrad, KeepsOneAccumulatorPerRow) {
  Case one(RowwiseAdagradOptions(0.1).eps(1e-6).initial_accumulator_value(0.5));
  at::Tensor sum = at::full({rows}, 0.5, at::kDouble);
  for (int t = 1; t <= 8; ++t) {
    const Step step = step_number(t);
    std::vector<std::int64_t> touched = step.touched;
    if (t == 4) touched = {0, 1, 2, 3, 4};
    one.leaves.step({{0, t == 4 ? step.dense : step.sparse}});
    for (std::int64_t row : touched) {
      const at::Tensor g = step.dense[row];
      sum[row] += (g * g).mean();
      one.want[row] -= 0.1 * g / (sum[row].sqrt() + 1e-6);
    }
    one.expect_equal();
  }
}

TEST(RowwiseAdagrad, AVectorHasOneAccumulatorPerElement) {
  at::Tensor bias = numbers({4}, 1).requires_grad_();
  ShadowLeaves leaves({{"bias", bias}}, RowwiseAdagradOptions(0.1));
  const at::Tensor before = bias.detach().clone(), g = numbers({4}, 2);
  leaves.step({{0, g}});
  EXPECT_LE((bias.detach() - (before - 0.1 * g / (g.abs() + 1e-10))).abs().max().item<double>(), 1e-12);
}

TEST(SparseOptimizers, RefuseOptionsThatTheyDoNotHave) {
  OptimizerSpec spec = adam_options;
  spec.options["weight_decay"] = 0.1;
  EXPECT_THROW(spec.make({}), rpc::Error);
  EXPECT_THROW(OptimizerSpec(SparseAdamOptions(0.1).beta1(1)).make({}), rpc::Error);
  EXPECT_THROW(OptimizerSpec(RowwiseAdagradOptions(-1)).make({}), rpc::Error);
}

}  // namespace
}  // namespace weft::dist_optim::local_sparse_optimizers_test
