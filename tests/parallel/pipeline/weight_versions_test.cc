// Stages that step their parameters: at the end of a step, and with several versions of weights.
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/training/autocast.h>

#include <atomic>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::weight_versions_test {
namespace {

using namespace testing;
using schedule::Op;
using Tensors = std::vector<at::Tensor>;

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

void expect_close(const Tensors& got, const Tensors& expected, const std::string& of) {
  ASSERT_EQ(got.size(), expected.size()) << of;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-10, 1e-10)) << of << ", tensor " << i;
}

// The version of the weights with which the stage computes the micro-batch.
int version_of(const schedule::Schedule& schedule, int stage, int microbatch) {
  for (const auto& actions : schedule.ranks)
    for (const auto& action : actions)
      if (action.op == Op::forward && action.stage == stage && action.microbatch == microbatch)
        return action.version;
  throw std::logic_error("no forward");
}

// Computes micro-batch after micro-batch in one process with the same versions of the weights. batches: for
// each stage, the micro-batches of each step.
struct Simulated {
  std::vector<Tensors> weights;  // by stage
  double loss = 0;               // of the last step
};
Simulated simulated(const schedule::Schedule& schedule, const std::vector<int>& batches, const at::Tensor& x,
                    const at::Tensor& y, int steps, bool trains = true) {
  const int count = schedule.stages();
  const StageGraph graph = cut(blocks(count), {.cuts = one_block_each(count)});
  graph.train(trains);
  std::vector<Tensors> latest, pending(static_cast<std::size_t>(count));
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int stage = 0; stage < count; ++stage) {
    latest.push_back(copies_of(graph[stage].module->parameters()));
    optimizers.push_back(std::make_unique<torch::optim::SGD>(latest.back(), momentum));
  }
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<Tensors>> versions;
    for (const Tensors& weights : latest) versions.push_back({copies_of(weights)});
    const auto parts = std::min<std::int64_t>(schedule.microbatches, x.size(0));
    const auto xs = at::tensor_split(x + step, parts), ys = at::tensor_split(y, parts);
    std::vector<double> rows(static_cast<std::size_t>(count));
    loss = 0;
    for (int microbatch = 0; microbatch < parts; ++microbatch) {
      const auto at = static_cast<std::size_t>(microbatch);
      for (int stage = 0; stage < count; ++stage) {
        const auto& weights = versions[static_cast<std::size_t>(stage)].at(
            static_cast<std::size_t>(version_of(schedule, stage, microbatch)));
        const Tensors parameters = graph[stage].module->parameters();
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const at::NoGradGuard no_grad;
          parameters[i].copy_(weights[i]);
          parameters[i].mutable_grad().reset();
        }
      }
      std::vector<Values> outputs;
      for (int stage = 0; stage < count; ++stage) {
        Values inputs;
        for (const Source& source : graph[stage].inputs)
          inputs.push_back(source.from < 0 ? xs[at] : outputs[static_cast<std::size_t>(source.from)][0]);
        outputs.push_back(graph[stage].forward(inputs));
      }
      const at::Tensor own = squares(outputs.back(), {ys[at]});
      own.backward();
      const auto share = static_cast<double>(xs[at].size(0));
      loss += own.item<double>() * share / static_cast<double>(x.size(0));
      for (int stage = 0; stage < count; ++stage) {
        const auto s = static_cast<std::size_t>(stage);
        Tensors& sums = pending[s];
        const Tensors parameters = graph[stage].module->parameters();
        sums.resize(parameters.size());
        rows[s] += share;
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] = sums[i].defined() ? sums[i] + parameters[i].grad() * share : parameters[i].grad() * share;
        if ((microbatch + 1) % batches[s] != 0 && microbatch + 1 != parts) continue;
        for (std::size_t i = 0; i < sums.size(); ++i) latest[s][i].mutable_grad() = sums[i] / rows[s];
        optimizers[s]->step();
        versions[s].push_back(copies_of(latest[s]));
        sums.clear();
        rows[s] = 0;
      }
    }
  }
  return {std::move(latest), loss};
}

schedule::Schedule without_flush(const std::string& name, int ranks, int microbatches) {
  if (name == "pipedream-2bw")
    return schedule::pipedream_2bw({.ranks = ranks, .microbatches = 3}, microbatches);
  return schedule::pipedream({.ranks = ranks, .microbatches = microbatches},
                             {.vertical_sync = name == "vertical"});
}
std::vector<int> batches_of(const std::string& name, int ranks) {
  return std::vector<int>(static_cast<std::size_t>(ranks), name == "pipedream-2bw" ? 3 : 1);
}

class Versions : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(WithoutFlush, Versions, ::testing::Values("pipedream", "vertical", "pipedream-2bw"),
                         [](const auto& info) {
                           return info.param == "pipedream-2bw" ? std::string("pipedream2bw") : info.param;
                         });

TEST_P(Versions, OnThreadsEqualOneProcessWithTheSameVersions) {
  for (const auto& [ranks, microbatches, recompute] : {std::tuple{1, 3, schedule::Recompute::never},
                                                       {2, 5, schedule::Recompute::never},
                                                       {3, 4, schedule::Recompute::always},
                                                       {4, 9, schedule::Recompute::never},
                                                       {3, 1, schedule::Recompute::never}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " micro-batches");
    const auto schedule =
        schedule::add_recomputation(without_flush(GetParam(), ranks, microbatches), recompute);
    const at::Tensor x = numbers({schedule.microbatches * 2 + 1, 6}, 1), y = numbers(x.sizes(), 2);
    const auto expected = simulated(schedule, batches_of(GetParam(), ranks), x, y, 2);
    const StageGraph graph = cut(blocks(ranks), {.cuts = one_block_each(ranks)});
    LocalPipeline pipeline(graph, schedule, {.loss = squares, .optimizer = momentum});
    for (int step = 0; step < 2; ++step) pipeline.step({x + step}, {y});
    for (int stage = 0; stage < ranks; ++stage) {
      expect_close(graph[stage].module->parameters(), expected.weights[static_cast<std::size_t>(stage)],
                   "stage " + std::to_string(stage));
      for (const at::Tensor& parameter : graph[stage].module->parameters())
        EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

TEST_P(Versions, OnRanksOfAGroupEqualOneProcessWithTheSameVersions) {
  const auto schedule =
      schedule::add_recomputation(without_flush(GetParam(), 3, 4), schedule::Recompute::except_last);
  const at::Tensor x = numbers({schedule.microbatches * 2 + 1, 6}, 1), y = numbers(x.sizes(), 2);
  const auto expected = simulated(schedule, batches_of(GetParam(), 3), x, y, 2);
  on_ranks(3, [&](const Group& group) {
    const StageGraph graph = stages_on(group.rank(), blocks(3), schedule);
    GroupPipeline pipeline(group, graph, schedule, {.loss = squares, .optimizer = momentum});
    for (int step = 0; step < 2; ++step) pipeline.step({x + step}, {y});
    expect_close(graph[group.rank()].module->parameters(),
                 expected.weights[static_cast<std::size_t>(group.rank())],
                 "stage " + std::to_string(group.rank()));
  });
}

TEST(ReplicatedStages, EqualOneProcessWithTheSameVersions) {
  for (const auto& [replicas, microbatches, rows] : {std::tuple{std::vector{2, 1}, 6, 13},
                                                     {std::vector{1, 2}, 5, 11},
                                                     {std::vector{2, 2}, 7, 15},
                                                     {std::vector{3, 1, 1}, 8, 17},
                                                     {std::vector{2, 1}, 6, 3}}) {
    const int count = static_cast<int>(replicas.size());
    const int ranks = std::accumulate(replicas.begin(), replicas.end(), 0);
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " micro-batches");
    const auto schedule =
        schedule::pipedream({.ranks = ranks, .microbatches = microbatches}, {.replicas = replicas});
    const at::Tensor x = numbers({rows, 6}, 1), y = numbers(x.sizes(), 2);
    const bool trains = rows > microbatches;  // a batch norm refuses one row
    const auto expected = simulated(schedule, replicas, x, y, 2, trains);
    std::vector<at::Tensor> outputs(static_cast<std::size_t>(ranks)), losses = outputs;
    on_ranks(ranks, [&](const Group& group) {
      const auto own = stages_of(schedule, group.rank());
      const StageGraph graph = cut(blocks(count), {.cuts = one_block_each(count), .built = own});
      const int stage = *own.begin();
      if (group.rank() != schedule.rank_of(stage, 0)) {
        const at::NoGradGuard no_grad;  // replicas begin with the values of the first one
        for (const at::Tensor& parameter : graph[stage].module->parameters()) parameter.zero_();
      }
      graph.train(trains);
      GroupPipeline pipeline(group, graph, schedule, {.loss = squares, .optimizer = momentum});
      const auto at = static_cast<std::size_t>(group.rank());
      for (int step = 0; step < 2; ++step) losses[at] = pipeline.step({x + step}, {y}).loss;
      expect_close(graph[stage].module->parameters(), expected.weights[static_cast<std::size_t>(stage)],
                   "rank " + std::to_string(group.rank()));
      graph.train(false);
      const Values got = pipeline.evaluate({x});
      EXPECT_EQ(got.size(), stage + 1 == count ? 1U : 0U);
      if (!got.empty()) outputs[at] = got[0];
    });
    for (const at::Tensor& loss : losses) EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-10);
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) continue;
      EXPECT_TRUE(at::equal(output, outputs.back()) && output.size(0) == x.size(0));
    }
  }
}

TEST(ReplicatedStages, AReplicaThatThrowsFailsTheStepOnAllRanks) {
  const auto schedule = schedule::pipedream({.ranks = 3, .microbatches = 6}, {.replicas = {2, 1}});
  const auto errors = errors_on_ranks(3, [&](const Group& group) {
    const auto own = stages_of(schedule, group.rank());
    const StageGraph graph =
        cut(blocks(2, throws_in(group.rank() == 1 ? 0 : -1)), {.cuts = {1}, .built = own});
    GroupPipeline pipeline(group, graph, schedule, {.loss = squares, .optimizer = momentum});
    pipeline.step({numbers({12, 6}, 1)}, {numbers({12, 6}, 2)});
  });
  expect_errors(errors, "stage 0, micro-batch 1, F: out of order");
}

// The same stages in two pipelines on different data.
TEST(DataParallelPipelines, GradientsAreTheMeanOverThePipelines) {
  const auto schedule = schedule::zb_h1({.ranks = 2, .microbatches = 3});
  const Named expected = named_parameters_of(trained(blocks(2)));
  for (const bool steps : {false, true})
    on_ranks(4, [&](const Group& world) {
      const Mesh mesh(world, 2);
      const StageGraph graph = stages_on(mesh.pipeline.rank(), blocks(2), schedule);
      graph.train(false);     // batch norms of two pipelines have their own statistics
      if (mesh.which == 1) {  // it begins with the values of the first pipeline
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : graph.parameters()) parameter.zero_();
      }
      GroupPipelineOptions options{.loss = squares, .data_parallel = mesh.data};
      if (steps) options.optimizer = momentum;
      GroupPipeline pipeline(mesh.pipeline, graph, schedule, options);
      torch::optim::SGD optimizer(graph.parameters(), momentum);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        pipeline.step({rows_of(numbers({12, 6}, 3) + step, mesh)}, {rows_of(numbers({12, 6}, 4), mesh)});
        if (!steps) optimizer.step();
      }
      expect_parameters(graph, expected);
    });
}

TEST(StageOptimizers, StepAtTheEndOfAScheduleWithAFlush) {
  const auto schedule = schedule::interleaved({.ranks = 2, .microbatches = 4, .chunks = 2});
  const StageGraph own = cut(blocks(4), {.cuts = {1, 2, 3}}), graph = cut(blocks(4), {.cuts = {1, 2, 3}});
  LocalPipeline by_hand(own, schedule, {.loss = squares});
  LocalPipeline pipeline(graph, schedule, {.loss = squares, .optimizer = momentum});
  torch::optim::SGD optimizer(own.parameters(), momentum);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    by_hand.step({numbers({9, 6}, 1)}, {numbers({9, 6}, 2)});
    optimizer.step();
    const LocalStep result = pipeline.step({numbers({9, 6}, 1)}, {numbers({9, 6}, 2)});
    // including the steps of the optimizers
    EXPECT_EQ(result.timeline.ranks[0].size(), pipeline.schedule().ranks[0].size());
  }
  expect_close(graph.parameters(), own.parameters(), "model");
}

TEST(StageOptimizers, ContinueFromTheirStateAndFromReplacedParameters) {
  const auto schedule = schedule::pipedream({.ranks = 2, .microbatches = 5});
  const Values x{numbers({10, 6}, 1)}, y{numbers({10, 6}, 2)};
  const StageGraph whole = cut(blocks(2), {.cuts = {1}}), resumed = cut(blocks(2), {.cuts = {1}});
  LocalPipeline uninterrupted(whole, schedule, {.loss = squares, .optimizer = momentum});
  uninterrupted.step(x, y);
  std::vector<dist_optim::OptimizerState> states;
  for (int stage = 0; stage < 2; ++stage) states.push_back(uninterrupted.optimizer(stage).state());
  const Tensors weights = copies_of(whole.parameters());
  uninterrupted.step(x, y);

  LocalPipeline pipeline(resumed, schedule, {.loss = squares, .optimizer = momentum});
  pipeline.step(y, x);
  for (int stage = 0; stage < 2; ++stage) pipeline.optimizer(stage).set_state(states[std::size_t(stage)]);
  const Tensors parameters = resumed.parameters();
  for (std::size_t i = 0; i < weights.size(); ++i) parameters[i].set_data(weights[i]);  // as torch::load does
  pipeline.step(x, y);
  expect_close(resumed.parameters(), whole.parameters(), "model");
}

TEST(StageOptimizers, NotifyForwardsOfChangedWeights) {
  std::vector<std::pair<int, bool>> calls;
  StageGraph graph = cut(blocks(1), {});
  graph.add({std::make_shared<torch::nn::LinearImpl>(1, 1),
             [&](const Values& values, const StepPosition& at) {
               calls.emplace_back(at.microbatch, at.is_first_microbatch);
               return values;
             },
             {Source{0}}});
  const auto schedule =
      schedule::add_recomputation(schedule::load("0F0,0F1,0B0,0STASH@0,0STEP,0LOAD@0,0B1,0STEP@2\n"
                                                 "1F0,1F1,1B0,1STASH@0,1STEP,1LOAD@0,1B1,1STEP@2\n"),
                                  schedule::Recompute::always);
  LocalPipeline pipeline(graph, schedule, {.loss = squares, .optimizer = momentum});
  pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  EXPECT_EQ(calls, (std::vector<std::pair<int, bool>>{{0, true}, {1, false}, {0, false}, {1, true}}));
}

TEST(StageOptimizers, AFailedEvaluationKeepsLoadedParameters) {
  const StageGraph graph = cut(blocks(2), {.cuts = {1}});
  LocalPipeline pipeline(graph, schedule::pipedream({.ranks = 2, .microbatches = 2}),
                         {.loss = squares, .optimizer = momentum});
  pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  const at::Tensor loaded = numbers({6, 6}, 3);
  graph.parameters()[0].set_data(loaded);
  EXPECT_TRUE(error_of([&] { pipeline.evaluate({numbers({4, 5}, 1)}); }));
  EXPECT_TRUE(at::equal(graph.parameters()[0], loaded));
}

TEST(StageOptimizers, SkipFrozenParametersAndStagesWithoutParameters) {
  StageGraph graph = cut(blocks(1), {});
  graph.add(std::make_shared<torch::nn::TanhImpl>(), Source{0});
  graph.parameters()[0].set_requires_grad(false);
  const Tensors before = copies_of(graph.parameters());
  LocalPipeline pipeline(graph, schedule::pipedream({.ranks = 2, .microbatches = 3}),
                         {.loss = squares, .optimizer = momentum});
  pipeline.step({numbers({6, 6}, 1)}, {numbers({6, 6}, 2)});
  EXPECT_TRUE(at::equal(graph.parameters()[0], before[0]));
  EXPECT_FALSE(at::equal(graph.parameters()[2], before[2]));
}

// Autocast caches casts by the parameter tensor, whose version changes later.
TEST(StageOptimizers, InvalidateTheCastsOfAutocast) {
  const at::Tensor x = numbers({8, 6}, 1).to(at::kFloat), y = numbers({8, 6}, 2).to(at::kFloat);
  const auto whole = [] {
    const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(6, 6).bias(false));
    const at::NoGradGuard no_grad;
    linear->weight.copy_(numbers({6, 6}, 3));
    StageGraph graph;  // Linear uses a view of the weight, for which autocast keeps no cast
    graph.add({linear,
               [linear](const Values& values) { return Values{at::linear(values[0], linear->weight)}; },
               {step_input(0)}});
    return graph;
  };
  const StageGraph by_hand = whole();
  torch::optim::SGD optimizer(by_hand.parameters(), momentum);
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    const training::Autocast autocast(at::kCPU, at::kBFloat16);
    const auto rows = at::indexing::Slice(2 * microbatch, 2 * microbatch + 2);
    optimizer.zero_grad();
    squares(by_hand[0].forward({x.index({rows})}), {y.index({rows})}).backward();
    optimizer.step();
  }
  for (const auto recompute : {schedule::Recompute::never, schedule::Recompute::always}) {
    const StageGraph graph = whole();
    LocalPipeline pipeline(
        graph, schedule::add_recomputation(schedule::pipedream({.ranks = 1, .microbatches = 4}), recompute),
        {.loss = squares, .optimizer = momentum});
    const training::Autocast autocast(at::kCPU, at::kBFloat16);
    pipeline.step({x}, {y});
    expect_close(graph.parameters(), by_hand.parameters(), "model");
  }
}

TEST(StageOptimizers, AFailedStepLeavesTheNewestWeights) {
  const auto schedule = schedule::pipedream({.ranks = 2, .microbatches = 4});
  StageGraph graph = cut(blocks(1), {});
  std::atomic<int> forwards = 0;
  bool fails = true;
  graph.add({std::make_shared<torch::nn::LinearImpl>(1, 1),
             [&](const Values& values) {
               if (fails && ++forwards == 3) throw std::runtime_error("out of order");
               return values;
             },
             {Source{0}}});
  LocalPipeline pipeline(graph, schedule, {.loss = squares, .optimizer = torch::optim::SGDOptions(0.1)});
  const Tensors before = copies_of(graph.parameters());
  const auto error = error_of([&] { pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(std::string(error->what()), "pipeline step: stage 1, micro-batch 2, F: out of order");
  EXPECT_FALSE(at::equal(graph.parameters()[0], before[0]));  // stage 0 has stepped
  // The training continues with these weights: the next step equals that of a model with these weights.
  fails = false;
  StageGraph other = cut(blocks(1), {});
  other.add({std::make_shared<torch::nn::LinearImpl>(1, 1), [](const Values& x) { return x; }, {Source{0}}});
  for (std::size_t i = 0; i < other.parameters().size(); ++i) {
    const at::NoGradGuard no_grad;
    other.parameters()[i].copy_(graph.parameters()[i]);
  }
  LocalPipeline fresh(other, schedule, {.loss = squares, .optimizer = torch::optim::SGDOptions(0.1)});
  for (LocalPipeline* each : {&pipeline, &fresh}) each->step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
  expect_close(Tensors(graph[0].module->parameters()), Tensors(other[0].module->parameters()), "stage 0");
}

TEST(StageOptimizers, RefuseInvalidArguments) {
  const StageGraph graph = cut(blocks(2), {.cuts = {1}});
  const auto steps = schedule::pipedream({.ranks = 2, .microbatches = 2});
  EXPECT_EQ(
      test::message_of([&] { LocalPipeline(graph, steps, {.loss = squares}); }),
      "LocalPipeline: the schedule steps parameters, and there is no optimizer: give one in the options");
  EXPECT_EQ(test::message_of([&] {
              LocalPipeline(graph, schedule::pipedream({.ranks = 3, .microbatches = 2}, {.replicas = {1, 2}}),
                            {.loss = squares, .optimizer = momentum});
            }),
            "LocalPipeline: a schedule with a stage on 2 ranks, expected one rank for each stage");
  const auto replicated = schedule::load("0F0,0B0\n0F1,0B1", "by hand");
  auto steps_too_early = schedule::add_optimizer_steps(replicated);
  for (const auto& error : errors_on_ranks(2, [&](const Group& group) {
         GroupPipeline(group, cut(blocks(1), {}), steps_too_early, {.loss = squares, .optimizer = momentum});
       }))
    EXPECT_EQ(
        std::string(error.value().what()),
        "GroupPipeline: rank 0 has for stage 0 an optimizer step before the end of the reduction, expected "
        "it after the end: see schedule::add_gradient_reduction and schedule::add_optimizer_steps");
  const auto reduced_twice = schedule::load(
      "0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0F2,0B2,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n"
      "0F1,0B1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0F3,0B3,0REDUCE_GRAD,0WAIT_REDUCE_GRAD",
      "by hand");
  expect_errors(errors_on_ranks(2,
                                [&](const Group& group) {
                                  GroupPipeline(group, cut(blocks(1), {}), reduced_twice, {.loss = squares});
                                }),
                "a backward after the start of a reduction");
  auto some = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  some.ranks[0].push_back({.op = Op::optimizer_step, .stage = 0});
  EXPECT_EQ(test::message_of([&] { LocalPipeline(graph, some, {.loss = squares, .optimizer = momentum}); }),
            "LocalPipeline: rank 1 has for stage 1 gradients without an optimizer step, expected one after "
            "the last backward: see schedule::add_gradient_reduction and schedule::add_optimizer_steps");
  StageGraph tied;
  const auto part = std::make_shared<torch::nn::LinearImpl>(6, 6);
  tied.add(part, step_input(0));
  tied.add(part, Source{0});
  EXPECT_EQ(
      test::message_of([&] { LocalPipeline(tied, steps, {.loss = squares, .optimizer = momentum}); }),
      "LocalPipeline: the stages 0 and 1 share a parameter: put the layers that have it together, or tie "
      "copies (LayerGraph::tie)");
  LocalPipeline without(graph, schedule::fill_drain({.ranks = 2, .microbatches = 2}), {.loss = squares});
  EXPECT_EQ(test::message_of([&] { without.optimizer(0); }),
            "LocalPipeline: no optimizer of stage 0 is here: give one in the options, on the stage's rank");
}

}  // namespace
}  // namespace weft::pipeline::weight_versions_test
