#include <weft/parallel/pipeline/deferred_batch_norm.h>

#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/pipeline/profiler.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>

#include "tests/support/errors.h"

namespace weft::pipeline::deferred_batch_norm_test {
namespace {

using test::error_of;
using torch::nn::BatchNormOptions;

// A tensor whose rows differ in the mean, and whose channels differ in the variance.
at::Tensor tilted(at::IntArrayRef sizes, std::uint64_t seed = 1) {
  at::Tensor x = at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
  std::vector<std::int64_t> rows(sizes.size(), 1), channels(sizes.size(), 1);
  rows[0] = channels[1] = -1;
  return x * at::arange(1, sizes[1] + 1).pow(3).view(channels) + at::arange(sizes[0]).view(rows);
}

void expect_equal(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(at::allclose(a, b, 1e-9, 1e-9)) << a << "\n" << b;
}

template <class Norm>
Norm in_double(Norm norm) {
  norm->to(at::kDouble);
  return norm;
}

// Computes a mini-batch in parts.
template <class Model>
at::Tensor in_parts(Model& model, const at::Tensor& x, std::int64_t parts) {
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& part : at::tensor_split(x, parts)) outputs.push_back(model->forward(part));
  return at::cat(outputs);
}

// A convolution and a BatchNorm2d, and the same with a DeferredBatchNorm.
struct Pair {
  Pair() {
    whole->to(at::kDouble);
    deferred->to(at::kDouble);
    convert_deferred_batch_norm(*deferred);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < whole->parameters().size(); ++i)
      deferred->parameters()[i].copy_(whole->parameters()[i]);
  }
  static torch::nn::Sequential make() {
    return torch::nn::Sequential(torch::nn::Conv2d(3, 3, 1), torch::nn::BatchNorm2d(3));
  }
  DeferredBatchNormImpl& norm() { return deferred[1]->as<DeferredBatchNormImpl>()[0]; }
  torch::nn::BatchNorm2dImpl& plain() { return whole[1]->as<torch::nn::BatchNorm2dImpl>()[0]; }
  torch::nn::Sequential whole = make(), deferred = make();
};

TEST(DeferredBatchNorm, NormalizesEachMicroBatch) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{8, 3}, {8, 3, 2}, {8, 3, 2, 2, 2}})
    for (const bool affine : {true, false}) {
      const BatchNormOptions options = BatchNormOptions(3).affine(affine);
      auto plain = in_double(torch::nn::BatchNorm1d(options));
      auto deferred = in_double(DeferredBatchNorm(options));
      const at::Tensor x = tilted(sizes).requires_grad_(), y = x.detach().clone().requires_grad_();
      std::vector<at::Tensor> outputs;
      for (const at::Tensor& part : at::tensor_split(x, 3))
        outputs.push_back(plain(part.dim() > 3 ? part.flatten(2) : part).view_as(part));
      const at::Tensor expected = at::cat(outputs), output = in_parts(deferred, y, 3);
      expect_equal(output, expected);
      expected.sin().sum().backward();
      output.sin().sum().backward();
      expect_equal(y.grad(), x.grad());
      if (!affine) continue;
      expect_equal(deferred->weight.grad(), plain->weight.grad());
      expect_equal(deferred->bias.grad(), plain->bias.grad());
    }
}

TEST(DeferredBatchNorm, ItsStatisticsAreThoseOfTheMiniBatch) {
  for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
    const BatchNormOptions options = BatchNormOptions(3).momentum(momentum);
    auto plain = in_double(torch::nn::BatchNorm2d(options));
    auto deferred = in_double(DeferredBatchNorm(options));
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = tilted({7, 3, 4, 4}, static_cast<std::uint64_t>(step)) + 1000;
      plain(x);
      // The number of micro-batches may differ from step to step.
      in_parts(deferred, x.requires_grad_(), 1 + step);
      EXPECT_EQ(deferred->num_batches_tracked.item<double>(), step);
      deferred->end_minibatch();
      deferred->end_minibatch();  // without micro-batches
      expect_equal(deferred->running_mean, plain->running_mean);
      expect_equal(deferred->running_var, plain->running_var);
      EXPECT_EQ(deferred->num_batches_tracked.item<double>(), step + 1);
    }
    for (const at::Tensor& buffer : deferred->buffers()) EXPECT_FALSE(buffer.requires_grad());
    plain->eval(), deferred->eval();
    const at::Tensor x = tilted({7, 3, 4, 4}, 9);
    expect_equal(deferred(x), plain(x));
  }
}

TEST(DeferredBatchNorm, AProfileLeavesNoMicroBatches) {
  Pair models;
  profile(models.deferred, tilted({4, 3, 2, 2}));
  models.norm().end_minibatch();  // as an evaluation of a pipeline does
  EXPECT_EQ(models.norm().num_batches_tracked.item<std::int64_t>(), 0);
  expect_equal(models.norm().running_var, at::ones({3}, at::kDouble));
}

TEST(DeferredBatchNorm, AccumulatesInFloat32AlsoInLowPrecision) {
  torch::nn::BatchNorm1d plain(BatchNormOptions(2).momentum(1));
  DeferredBatchNorm deferred(BatchNormOptions(2).momentum(1));
  deferred->to(at::kBFloat16);
  const at::Tensor x = tilted({1000, 2}).div(500).to(at::kBFloat16);
  plain(x.to(at::kFloat));
  in_parts(deferred, x, 50);
  deferred->end_minibatch();
  EXPECT_TRUE(at::allclose(deferred->running_var.to(at::kFloat), plain->running_var, 8e-3, 8e-3));
  EXPECT_TRUE(at::allclose(deferred->running_mean.to(at::kFloat), plain->running_mean, 8e-3, 8e-3));
}

const Loss sines = [](const Values& outputs, const Values&) { return outputs[0].sin().mean(); };

struct Inner : torch::nn::Module {
  Inner() {
    layers->push_back(torch::nn::BatchNorm1d(2));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

TEST(DeferredBatchNorm, ConversionReachesNestedSequences) {
  torch::nn::Sequential model(torch::nn::Linear(2, 2), std::make_shared<Inner>(),
                              torch::nn::BatchNorm1d(BatchNormOptions(2).track_running_stats(false)),
                              torch::nn::BatchNorm1d(2));
  model->to(at::kDouble);
  model->children()[3]->eval();
  const auto before = model->named_parameters();
  const at::Tensor mean = model->named_buffers()["3.running_mean"];
  EXPECT_EQ(convert_deferred_batch_norm(*model), (std::vector<std::string>{"1.layers.0", "3"}));
  const auto after = model->named_parameters();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& entry : after) EXPECT_TRUE(entry.value().is_same(before[entry.key()])) << entry.key();
  EXPECT_EQ(model->named_buffers()["3.running_mean"].data_ptr(), mean.data_ptr());
  EXPECT_FALSE(model->children()[3]->is_training());
  EXPECT_EQ(convert_deferred_batch_norm(*model),
            std::vector<std::string>{});  // converted layers are not converted again
  EXPECT_NE(model[2]->as<torch::nn::BatchNorm1d>(), nullptr);
  model->forward(tilted({4, 2}));
  EXPECT_EQ(model->named_buffers()["1.layers.0.minibatch"][0].item<double>(), 4);
}

TEST(DeferredBatchNorm, ConversionRefusesMembersOfOtherModules) {
  struct Member : torch::nn::Module {
    torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(2));
  };
  Member module;
  test::expect_error([&] { convert_deferred_batch_norm(module); }, rpc::ErrorKind::failed_precondition,
                     "declare it as a DeferredBatchNorm");
}

TEST(DeferredBatchNorm, RefusesAnotherNumberOfChannels) {
  DeferredBatchNorm norm(BatchNormOptions(3));
  EXPECT_EQ(test::kind_of([&] { norm(at::ones({2, 2})); }), rpc::ErrorKind::invalid_argument);
}

// --- In steps of a pipeline ---

// In each mode of recomputation, also if stages are recomputed in a zero-bubble schedule of two ranks.
TEST(DeferredBatchNorm, StepsOfAPipelineAreMiniBatches) {
  using schedule::Recompute;
  for (const char* name : {"gpipe", "zb-v"})
    for (const Recompute mode : {Recompute::never, Recompute::except_last, Recompute::always})
      for (const std::int64_t rows : {12, 8, 3}) {  // of 4, 4 and 3 micro-batches
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(rows) + " rows");
        const bool is_v = std::string(name) == "zb-v";
        Pair first, second;
        StageGraph graph;
        graph.add({first.deferred.ptr(),
                   [model = first.deferred](const Values& x) mutable { return Values{model->forward(x[0])}; },
                   {step_input(0)}});
        if (is_v) {
          for (int stage = 1; stage < 3; ++stage) graph.add(torch::nn::Tanh().ptr(), Source{stage - 1});
          graph.add(
              {second.deferred.ptr(),
               [model = second.deferred](const Values& x) mutable { return Values{model->forward(x[0])}; },
               {Source{2}}});
        }
        const auto computations = schedule::add_recomputation(
            schedule::generate(name, {.ranks = is_v ? 2 : 1, .microbatches = 4}), mode);
        LocalPipeline pipeline{graph, computations, {.loss = sines}};
        for (int step = 0; step < 2; ++step) {
          const at::Tensor x = tilted({rows, 3, 2, 2}, static_cast<std::uint64_t>(step));
          pipeline.step({x}, {});
          first.whole->forward(x);  // the parameters do not change
          expect_equal(first.norm().running_mean, first.plain().running_mean);
          expect_equal(first.norm().running_var, first.plain().running_var);
          EXPECT_EQ(first.norm().num_batches_tracked.item<double>(), step + 1);
          if (is_v) {
            EXPECT_EQ(second.norm().num_batches_tracked.item<double>(), step + 1);
          }
        }
        EXPECT_TRUE(first.norm().weight.grad().defined());
        EXPECT_TRUE(first.norm().bias.grad().defined());
        EXPECT_EQ(first.norm().named_buffers()["minibatch"].abs().sum().item<double>(), 0);
        first.whole->eval(), first.deferred->eval(), second.deferred->eval();
        if (!is_v) {
          const at::Tensor x = tilted({rows, 3, 2, 2}, 7);
          expect_equal(pipeline.evaluate({x})[0], first.whole->forward(x));
        }
      }
}

// torchgpipe's test_conv_bn and test_optimize: the statistics of the first step are those of the whole batch,
// and training continues with the norms.
TEST(DeferredBatchNorm, TrainsBehindAConvolution) {
  Pair pair;
  LocalPipeline pipeline{
      split(pair.deferred, {1}), schedule::fill_drain({.ranks = 2, .microbatches = 4}), {.loss = sines}};
  torch::optim::SGD own(pair.deferred->parameters(), 0.1), other(pair.whole->parameters(), 0.1);
  const at::Tensor x = tilted({16, 3, 4, 4});
  for (int step = 0; step < 3; ++step) {
    own.zero_grad(), other.zero_grad();
    pipeline.step({x}, {});
    pair.whole->forward(x).sin().mean().backward();
    own.step(), other.step();
    EXPECT_EQ(at::allclose(pair.norm().running_mean, pair.plain().running_mean), step == 0);
    EXPECT_EQ(at::allclose(pair.norm().running_var, pair.plain().running_var), step == 0);
    EXPECT_FALSE(at::allclose(pair.deferred->parameters()[0], pair.whole->parameters()[0]));
  }
}

TEST(DeferredBatchNorm, AStepThatFailsLeavesTheStatistics) {
  Pair pair;
  bool fails = true;
  LocalPipeline pipeline{split(pair.deferred, {1}),
                         schedule::fill_drain({.ranks = 2, .microbatches = 4}),
                         {.loss = [&](const Values& y, const Values& targets) {
                           if (fails) throw std::runtime_error("no loss");
                           return sines(y, targets);
                         }}};
  const at::Tensor x = tilted({16, 3, 4, 4});
  EXPECT_TRUE(error_of([&] { pipeline.step({x}, {}); }));
  EXPECT_EQ(pair.norm().num_batches_tracked.item<double>(), 0);
  fails = false;
  pipeline.step({x}, {});
  pair.whole->forward(x);
  expect_equal(pair.norm().running_mean, pair.plain().running_mean);
  expect_equal(pair.norm().running_var, pair.plain().running_var);
}

}  // namespace
}  // namespace weft::pipeline::deferred_batch_norm_test
