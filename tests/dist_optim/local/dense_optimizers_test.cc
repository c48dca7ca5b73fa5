// Compares Adadelta, Adamax and Rprop with numbers of Python's torch.optim 2.15 (foreach=False), in double
// precision.
#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

namespace weft::dist_optim::local_dense_optimizers_test {
namespace {

// torch.sin(torch.arange(n, dtype=torch.float64) * 1.3 + phase)
at::Tensor numbers(std::int64_t n, double phase) { return at::sin(at::arange(n, at::kDouble) * 1.3 + phase); }

void expect_near(const at::Tensor& found, const std::vector<double>& expected) {
  EXPECT_LE((found.detach() - at::tensor(expected, at::kDouble)).abs().max().item<double>(), 1e-14) << found;
}

// p = numbers(4, 9); six steps with p.grad = numbers(4, t), t = 1 to 6, but zeros at t = 4.
void expect_after_six_steps(const OptimizerSpec& spec, const std::vector<double>& expected) {
  SCOPED_TRACE(to_string(spec));
  const at::Tensor weight = numbers(4, 9).requires_grad_();
  ShadowLeaves leaves({{"weight", weight}}, spec);
  for (int t = 1; t <= 6; ++t) leaves.step({{0, t == 4 ? at::zeros({4}, at::kDouble) : numbers(4, t)}});
  expect_near(weight, expected);
}

TEST(Adadelta, StepsEqualThoseOfPython) {
  expect_after_six_steps(AdadeltaOptions(0.5), {0.41090014903402594, -0.76876187220290881,
                                                -0.82146067078038543, 0.32861506866000195});
  expect_after_six_steps(
      AdadeltaOptions(0.5).rho(0.8).eps(1e-3).weight_decay(0.1).maximize(true),
      {0.42887796890057361, -0.72483413504905159, -0.83505296074255608, 0.29542608443304791});
}

TEST(Adamax, StepsEqualThoseOfPython) {
  expect_after_six_steps(AdamaxOptions(0.1), {0.091029934509880159, -0.8757958152290819, -0.52059822572763925,
                                              0.53823138051786779});
  expect_after_six_steps(
      AdamaxOptions(0.1).beta1(0.8).beta2(0.7).eps(1e-3).weight_decay(0.1).maximize(true),
      {0.74347653760951093, -0.63166550270572497, -1.135697762259996, 0.072931008920224277});
}

TEST(Rprop, StepsEqualThoseOfPython) {
  expect_after_six_steps(RpropOptions(0.1), {0.36491848524175652, -0.9276858097635825, -0.77562859496870884,
                                             0.48747443913769301});
  expect_after_six_steps(
      RpropOptions(0.1).etaminus(0.4).etaplus(1.5).step_size_min(0.03).step_size_max(0.2).maximize(true),
      {0.46211848524175675, -0.60768580976358244, -0.8728285949687089, 0.13747443913769303});
}

// Four steps of torch.complex(numbers(3, 9), numbers(3, 2)) with torch.complex(numbers(3, t), numbers(3, t +
// 0.5)).
TEST(DenseOptimizers, TakeComplexParametersAsTwoReals) {
  const std::vector<std::pair<OptimizerSpec, std::vector<double>>> cases{
      {AdadeltaOptions(0.1),
       {0.41170329075967815, 0.90924133179036659, -0.76720510397792496, -0.15688644416934872,
        -0.82195889667321154, -0.99324452909446959}},
      {AdamaxOptions(0.1),
       {0.12591194847094564, 0.69573750926494626, -0.84623980364153795, -0.13668281094054072,
        -0.53848620123545088, -0.70764585361742305}},
      {RpropOptions(0.1),
       {0.048118485241756576, 0.74929742682568179, -0.75768580976358235, -0.14774569414324823,
        -0.45882859496870887, -0.62969100363346442}}};
  for (const auto& [spec, expected] : cases) {
    SCOPED_TRACE(spec.name);
    const at::Tensor weight = at::complex(numbers(3, 9), numbers(3, 2)).requires_grad_();
    ShadowLeaves leaves({{"weight", weight}}, spec);
    for (int t = 1; t <= 4; ++t) leaves.step({{0, at::complex(numbers(3, t), numbers(3, t + 0.5))}});
    expect_near(at::view_as_real(weight.detach()).flatten(), expected);
  }
}

TEST(DenseOptimizers, OnlyReadTheGradient) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec(AdadeltaOptions().weight_decay(0.1)), OptimizerSpec(AdadeltaOptions()),
        OptimizerSpec(AdamaxOptions()), OptimizerSpec(RpropOptions())}) {
    const at::Tensor weight = numbers(4, 9).requires_grad_(), gradient = numbers(4, 1);
    ShadowLeaves leaves({{"weight", weight}}, spec);
    leaves.step({{0, -gradient}});
    leaves.step({{0, gradient}});  // every sign changes: Rprop treats the gradient as zeros
    EXPECT_TRUE(torch::equal(gradient, numbers(4, 1))) << spec.name;
  }
}

TEST(DenseOptimizers, RefuseTheOptionsThatPythonRefuses) {
  const at::Tensor sparse =
      torch::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::ones({1}, at::kDouble), {4});
  for (const OptimizerSpec& spec :
       {OptimizerSpec(AdadeltaOptions()), OptimizerSpec(AdamaxOptions()), OptimizerSpec(RpropOptions())}) {
    EXPECT_FALSE(spec.takes_sparse_gradients()) << spec.name;
    at::Tensor weight = numbers(4, 9).requires_grad_();
    weight.mutable_grad() = sparse;
    EXPECT_THROW(spec.make({weight})->step(), c10::Error) << spec.name;
    OptimizerSpec momentum = spec;
    momentum.options["momentum"] = 0.9;
    EXPECT_THROW(momentum.make({}), rpc::Error) << spec.name;
  }
  for (const OptimizerSpec& spec :
       {OptimizerSpec(AdadeltaOptions(-1)), OptimizerSpec(AdadeltaOptions().rho(1.1)),
        OptimizerSpec(AdadeltaOptions().eps(-1)), OptimizerSpec(AdadeltaOptions().weight_decay(-1)),
        OptimizerSpec(AdamaxOptions(-1)), OptimizerSpec(AdamaxOptions().beta1(1)),
        OptimizerSpec(AdamaxOptions().beta2(-0.1)), OptimizerSpec(AdamaxOptions().eps(-1)),
        OptimizerSpec(AdamaxOptions().weight_decay(-1)), OptimizerSpec(RpropOptions(-1)),
        OptimizerSpec(RpropOptions().etaminus(1)), OptimizerSpec(RpropOptions().etaminus(0)),
        OptimizerSpec(RpropOptions().etaplus(1))})
    EXPECT_THROW(spec.make({}), rpc::Error) << to_string(spec);
}

TEST(DenseOptimizers, RefuseArchives) {
  const auto optimizer = OptimizerSpec(AdamaxOptions(0.1)).make({numbers(4, 9).requires_grad_()});
  torch::serialize::OutputArchive archive;
  EXPECT_THROW(optimizer->save(archive), c10::Error);
}

TEST(DenseOptimizers, HaveParameterGroups) {
  const at::Tensor weight = numbers(4, 9).requires_grad_(), bias = numbers(4, 9).requires_grad_();
  ShadowLeaves leaves({{"weight", weight}, {"bias", bias}},
                      OptimizerSpec(RpropOptions(0.1)).with_group("bias", {{"lr", 0.2}, {"maximize", 1}}));
  const at::Tensor g = numbers(4, 1);
  leaves.step({{0, g}, {1, g}});
  expect_near(weight - numbers(4, 9) + 0.1 * g.sign(), {0, 0, 0, 0});
  expect_near(bias - numbers(4, 9) - 0.2 * g.sign(), {0, 0, 0, 0});
}

}  // namespace
}  // namespace weft::dist_optim::local_dense_optimizers_test
