#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/sharded/checkpoint/checkpoints.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/weights/deferred.h>

#include "tests/parallel/pipeline/blocks.h"
#include "tests/support/torch_python.h"

namespace weft::pipeline::sharded_stages_test {
namespace {

using namespace testing;
using sharded::FullyShardedOptimizer;
using sharded::ParameterSlice;

StageGraph graph_of(const LayerGraph& model, const schedule::Schedule& schedule, int rank) {
  const StageGraph graph = stages_on(rank, model, schedule);
  graph.train(false);  // batch norms of two pipelines have their own statistics
  return graph;
}

void expect_slices_of(const Named& expected, const std::vector<ParameterSlice>& slices,
                      double tolerance = 1e-10) {
  EXPECT_FALSE(slices.empty());
  for (const ParameterSlice& slice : slices) {
    const at::Tensor part =
        expected.at(slice.parameter).detach().reshape({-1}).slice(0, slice.begin, slice.end);
    EXPECT_TRUE(at::allclose(slice.leaf.tensor, part, tolerance, tolerance)) << slice.leaf.name;
  }
}

GroupPipelineOptions sharded_over(const Group& data) {
  return {.loss = squares, .data_parallel = data, .sharded = sharded::ShardOptions{}};
}

class ShardedStages : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schedules, ShardedStages,
                         ::testing::Values("1f1b", "looped-bfs", "interleaved", "zb-v", "dualpipe-v"),
                         name_of_test);

TEST_P(ShardedStages, TrainLikeTheWholeModel) {
  using schedule::Recompute;
  for (const auto& [backend, recompute, active] :
       {std::tuple{Backend::memory, Recompute::never, 1}, {Backend::messages, Recompute::always, 3}}) {
    const auto schedule = schedule::add_unsharding(
        schedule::add_recomputation(schedule::generate(GetParam(), {.ranks = 2, .microbatches = 3}),
                                    recompute),
        active);
    const LayerGraph model = blocks(schedule.stages());
    const StageGraph whole = trained(model);
    const Named expected = named_parameters_of(whole);
    const at::Tensor outputs = whole[0].forward({numbers({12, 6}, 5)})[0];
    on_ranks(4, backend, [&](const Group& world) {
      const Mesh mesh(world, 2);
      const StageGraph graph = graph_of(model, schedule, mesh.pipeline.rank());
      if (mesh.which == 1) {  // it begins with the values of the first pipeline
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : graph.parameters()) parameter.zero_();
      }
      GroupPipeline pipeline(mesh.pipeline, graph, schedule, sharded_over(mesh.data));
      FullyShardedOptimizer optimizer(pipeline.sharded(), momentum);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        pipeline.step({rows_of(numbers({12, 6}, 3) + step, mesh)}, {rows_of(numbers({12, 6}, 4), mesh)});
        optimizer.step();
      }
      expect_slices_of(expected, pipeline.sharded().slices());
      const Values got = pipeline.evaluate({rows_of(numbers({12, 6}, 5), mesh)});
      for (const at::Tensor& each : got)
        EXPECT_TRUE(at::allclose(each, rows_of(outputs, mesh), 1e-10, 1e-10));
      for (const at::Tensor& parameter : graph.parameters())
        EXPECT_THROW((void)parameter.sum(), c10::Error);  // it has no elements here
    });
  }
}

TEST(ShardedStages, BeginWithTheParametersAndBuffersOfTheFirstPipeline) {
  const auto schedule = schedule::interleaved({.ranks = 2, .microbatches = 2, .chunks = 2});
  const LayerGraph model = blocks(4);
  const StageGraph whole = cut(model, {});
  const Named expected = named_parameters_of(whole);
  const auto buffers = whole[0].module->named_buffers();
  on_ranks(6, [&](const Group& world) {
    const Mesh mesh(world, 3);
    const std::set<int> stages = stages_of(schedule, mesh.pipeline.rank());
    const StageGraph graph = graph_of(model, schedule, mesh.pipeline.rank());
    if (mesh.which > 0) {
      const at::NoGradGuard no_grad;
      for (const int stage : stages) {
        for (at::Tensor& parameter : graph[stage].module->parameters()) parameter.fill_(mesh.which);
        for (at::Tensor& buffer : graph[stage].module->buffers()) buffer.fill_(mesh.which + 1);
      }
    }
    const GroupPipeline pipeline(mesh.pipeline, graph, schedule, sharded_over(mesh.data));
    expect_slices_of(expected, pipeline.sharded().slices(), 0);
    for (const int stage : stages)
      for (const auto& buffer : graph[stage].module->named_buffers())
        EXPECT_TRUE(at::equal(buffer.value(), buffers[buffer.key()])) << buffer.key();
  });
}

TEST(ShardedStages, OfDeferredModulesHaveTheirValues) {
  const auto schedule =
      schedule::add_unsharding(schedule::interleaved({.ranks = 2, .microbatches = 2, .chunks = 2}), 1);
  const LayerGraph model = blocks(4);
  const StageGraph whole = cut(model, {});
  const Named expected = named_parameters_of(whole);
  const at::Tensor outputs = trained(model)[0].forward({numbers({12, 6}, 5)})[0];
  const auto buffers = whole[0].module->named_buffers();
  on_ranks(4, [&](const Group& world) {
    const Mesh mesh(world, 2);
    const auto [graph, values] =
        weights::deferred([&] { return graph_of(model, schedule, mesh.pipeline.rank()); });
    GroupPipelineOptions options = sharded_over(mesh.data);
    options.sharded->values = values;
    GroupPipeline pipeline(mesh.pipeline, graph, schedule, options);
    expect_slices_of(expected, pipeline.sharded().slices(), 0);
    for (const int stage : stages_of(schedule, mesh.pipeline.rank()))
      for (const auto& buffer : graph[stage].module->named_buffers())
        EXPECT_TRUE(at::equal(buffer.value(), buffers[buffer.key()])) << buffer.key();
    FullyShardedOptimizer optimizer(pipeline.sharded(), momentum);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      pipeline.step({rows_of(numbers({12, 6}, 3) + step, mesh)}, {rows_of(numbers({12, 6}, 4), mesh)});
      optimizer.step();
    }
    for (const at::Tensor& each : pipeline.evaluate({rows_of(numbers({12, 6}, 5), mesh)}))
      EXPECT_TRUE(at::allclose(each, rows_of(outputs, mesh), 1e-10, 1e-10));
  });
}

// The model computes in float32, its second stage also in float64, and the optimizer steps float64.
void expect_types_of_stages(at::ScalarType second) {
  const auto schedule = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3});
  LayerGraph model;  // without buffers, which keep their types
  for (const std::uint64_t seed : {1, 2})
    model.add({"linear" + std::to_string(seed),
               [seed] {
                 torch::nn::Linear linear(torch::nn::LinearOptions(6, 6).bias(false));
                 linear->weight.set_data(numbers({6, 6}, seed));
                 return BuiltLayer{
                     linear.ptr(), [linear](const Values& x) mutable {
                       return Values{torch::tanh(linear(x[0].to(linear->weight.scalar_type())))};
                     }};
               },
               {seed == 1 ? step_input(0) : Source{0}}});
  const StageGraph whole = cut(model, {}), computing = cut(model, {});
  for (const auto& entry : computing[0].module->named_parameters())
    entry.value().set_data(entry.value().data().to(entry.key().starts_with("linear2") ? second : at::kFloat));
  torch::optim::SGD optimizer(whole.parameters(), momentum);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const auto parameters = whole.parameters(), copies = computing.parameters();
    for (std::size_t i = 0; i < copies.size(); ++i) {
      const at::NoGradGuard no_grad;
      copies[i].copy_(parameters[i]);
      copies[i].mutable_grad().reset();
    }
    const Values outputs = computing[0].forward({(numbers({12, 6}, 3) + step).to(at::kFloat)});
    squares(outputs, {numbers({12, 6}, 4).to(second)}).backward();
    for (std::size_t i = 0; i < copies.size(); ++i)
      parameters[i].mutable_grad() = copies[i].grad().to(at::kDouble);
    optimizer.step();
  }
  const Named expected = named_parameters_of(whole);
  on_ranks(4, [&](const Group& world) {
    const Mesh mesh(world, 2);
    const StageGraph graph = graph_of(model, schedule, mesh.pipeline.rank());
    sharded::ShardOptions types{.compute = at::kFloat};
    const auto loss = [second](const Values& outputs, const Values& targets) {
      EXPECT_EQ(outputs.at(0).scalar_type(), second);
      return squares(outputs, targets);
    };
    if (second != at::kFloat) types.precision_of = {{"linear2", {.parameters = second}}};
    GroupPipeline pipeline(mesh.pipeline, graph, schedule,
                           {.loss = loss, .data_parallel = mesh.data, .sharded = types});
    FullyShardedOptimizer own(pipeline.sharded(), momentum);
    for (int step = 0; step < 2; ++step) {
      own.zero_grad();
      const at::Tensor targets = rows_of(numbers({12, 6}, 4), mesh).to(second);
      const GroupStep result = pipeline.step({rows_of(numbers({12, 6}, 3) + step, mesh)}, {targets});
      EXPECT_EQ(result.loss.scalar_type(), second);
      own.step();
    }
    expect_slices_of(expected, pipeline.sharded().slices(), 1e-6);
    EXPECT_EQ(pipeline.sharded().slices().front().leaf.tensor.scalar_type(), at::kDouble);
  });
}

TEST(ShardedStages, ComputeInAnotherTypeThanThatOfTheOptimizer) {
  for (const at::ScalarType second : {at::kFloat, at::kDouble}) expect_types_of_stages(second);
}

// If there are fewer rows than micro-batches, a pipeline computes fewer micro-batches.
TEST(ShardedStages, PipelinesMayHaveDifferentNumbersOfRows) {
  const auto schedule = schedule::looped_breadth_first({.ranks = 2, .microbatches = 6, .chunks = 2});
  const std::vector<std::int64_t> rows{7, 2};
  const LayerGraph model = blocks(4);
  const StageGraph whole = cut(model, {});
  whole.train(false);
  for (const std::int64_t count : rows)  // the mean over the pipelines
    (squares(whole[0].forward({numbers({count, 6}, 3)}), {numbers({count, 6}, 4)}) / 2).backward();
  Named expected;
  for (const auto& [name, parameter] : named_parameters_of(whole)) expected[name] = parameter.grad();
  on_ranks(4, [&](const Group& world) {
    const Mesh mesh(world, 2);
    const StageGraph graph = graph_of(model, schedule, mesh.pipeline.rank());
    GroupPipeline pipeline(mesh.pipeline, graph, schedule, sharded_over(mesh.data));
    const std::int64_t own = rows[static_cast<std::size_t>(mesh.which)];
    pipeline.evaluate({numbers({own, 6}, 3)});
    pipeline.step({numbers({own, 6}, 3)}, {numbers({own, 6}, 4)});
    std::vector<ParameterSlice> gradients = pipeline.sharded().slices();
    for (ParameterSlice& slice : gradients) slice.leaf.tensor = slice.leaf.tensor.grad();
    expect_slices_of(expected, gradients);
  });
}

TEST(ShardedStages, RanksHaveOnlyPartsOfParametersAndGradients) {
  const auto schedule = schedule::one_forward_one_backward({.ranks = 1, .microbatches = 2});
  LayerGraph model;
  model.add({"wide",
             [] {
               torch::nn::Linear wide(64, 64);
               wide->to(at::kDouble);
               return BuiltLayer{wide.ptr(), [wide](const Values& x) mutable { return Values{wide(x[0])}; }};
             },
             {step_input(0)}});
  on_ranks(4, [&](const Group& world) {
    const Mesh mesh(world, 4);
    GroupPipeline pipeline(mesh.pipeline, cut(model, {}), schedule, sharded_over(mesh.data));
    const std::size_t part = 8 * (64 * 64 + 64) / 4;
    EXPECT_EQ(pipeline.sharded().bytes(), 2 * part);
    pipeline.step({numbers({4, 64}, 1)}, {numbers({4, 64}, 2)});
    EXPECT_EQ(pipeline.sharded().bytes(), 2 * part + 2 * 4 * part);  // and one buffer each
  });
}

// A parameter without a gradient on any rank is not stepped. One with a gradient on some rank is stepped on
// all.
TEST(ShardedStages, UnusedParametersHaveNoGradients) {
  LayerGraph model;
  model.add({"scaled",
             [] {
               const auto module = std::make_shared<torch::nn::Module>();
               const auto used = module->register_parameter("used", torch::ones({40}, at::kDouble));
               const auto sometimes = module->register_parameter("sometimes", torch::ones({40}, at::kDouble));
               module->register_parameter("unused", torch::ones({40}, at::kDouble));
               return BuiltLayer{module, [used, sometimes](const Values& x) {
                                   const bool both = x[0][0][0].item<double>() > 0;
                                   return Values{both ? x[0] * used * sometimes : x[0] * used};
                                 }};
             },
             {step_input(0)}});
  const auto schedule = schedule::one_forward_one_backward({.ranks = 1, .microbatches = 1});
  on_ranks(2, [&](const Group& world) {
    const Mesh mesh(world, 2);
    GroupPipeline pipeline(mesh.pipeline, cut(model, {}), schedule, sharded_over(mesh.data));
    pipeline.step({torch::full({2, 40}, mesh.which, at::kDouble)}, {numbers({2, 40}, 2)});
    for (const ParameterSlice& slice : pipeline.sharded().slices())
      EXPECT_EQ(slice.leaf.tensor.grad().defined(), slice.parameter != "scaled.unused") << slice.leaf.name;
  });
}

// Two pipelines of two ranks save. One pipeline of four ranks continues, whose stages have one part each.
TEST(ShardedStages, ContinueFromACheckpointWithOtherStagesAndParts) {
  const LayerGraph model = blocks(4);
  const Named expected = named_parameters_of(trained(model));
  const test::TemporaryFolder folder;
  const auto run = [&](const Group& world, int pipelines, int begin, int end) {
    const Mesh mesh(world, pipelines);
    const int chunks = 4 / mesh.pipeline.size();
    const auto schedule =
        schedule::interleaved({.ranks = mesh.pipeline.size(), .microbatches = 2, .chunks = chunks});
    const StageGraph graph = graph_of(model, schedule, mesh.pipeline.rank());
    GroupPipeline pipeline(mesh.pipeline, graph, schedule, sharded_over(mesh.data));
    FullyShardedOptimizer optimizer(pipeline.sharded(), momentum);
    sharded::Checkpoints checkpoints(world, folder.path());
    sharded::SlicedState state;
    const auto add_model = [&] {
      pipeline.sharded().add_to(state);
      for (const int stage : stages_of(schedule, mesh.pipeline.rank()))
        sharded::add_tensors(state, graph[stage].module->named_buffers(), "model/");
    };
    if (begin > 0) {
      add_model();
      optimizer.add_wanted_to(state, checkpoints.names(begin));
      state.notes = checkpoints.load(begin, state);
      optimizer.take_from(state);
    }
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      pipeline.step({rows_of(numbers({12, 6}, 3) + step, mesh)}, {rows_of(numbers({12, 6}, 4), mesh)});
      optimizer.step();
    }
    state = {};
    add_model();
    optimizer.add_to(state);
    checkpoints.save(end, state).get();
    if (end == 2) expect_slices_of(expected, pipeline.sharded().slices());
  };
  {
    on_ranks(4, [&](const Group& world) { run(world, 2, 0, 1); });
  }
  on_ranks(4, [&](const Group& world) { run(world, 1, 1, 2); });
}

// Each stage forwards a parameter, whose memory a RESHARD frees.
TEST(ShardedStages, OutputsMayBeParameters) {
  LayerGraph model;
  for (const int layer : {0, 1})
    model.add({"scale" + std::to_string(layer),
               [layer] {
                 const auto module = std::make_shared<torch::nn::Module>();
                 const auto scale = module->register_parameter("scale", numbers({3, 6}, 1 + layer));
                 return BuiltLayer{module, [scale](const Values& x) {
                                     return Values{x[0] * (x.size() > 1 ? x[1] : scale), scale};
                                   }};
               },
               layer == 0 ? std::vector{step_input(0)} : std::vector{Source{0, 0}, Source{0, 1}}});
  const auto schedule = schedule::add_unsharding(
      schedule::looped_breadth_first({.ranks = 1, .microbatches = 2, .chunks = 2}), /*active=*/1);
  const at::Tensor x = numbers({6, 6}, 3), y = numbers({6, 6}, 4);
  const StageGraph whole = cut(model, {});
  for (const int part : {0, 1})
    (squares(whole[0].forward({x.slice(0, 3 * part, 3 * part + 3)}), {y.slice(0, 3 * part, 3 * part + 3)}) /
     2)
        .backward();
  on_ranks(2, [&](const Group& world) {
    const Mesh mesh(world, 2);
    GroupPipeline pipeline(mesh.pipeline, cut(model, {.cuts = {1}}), schedule, sharded_over(mesh.data));
    const Values outputs = pipeline.evaluate({x});
    EXPECT_TRUE(at::allclose(outputs.at(1), numbers({3, 6}, 2).repeat({2, 1})));
    pipeline.step({x}, {y});
    for (const ParameterSlice& slice : pipeline.sharded().slices()) {
      if (slice.parameter != "scale0.scale") continue;
      const at::Tensor expected = named_parameters_of(whole).at(slice.parameter).grad().reshape({-1});
      EXPECT_TRUE(
          at::allclose(slice.leaf.tensor.grad(), expected.slice(0, slice.begin, slice.end), 1e-10, 1e-10));
    }
  });
}

// A parameter group by name, of which one rank has no parameters.
TEST(ShardedStages, TheOptimizerMayHaveParameterGroupsOfOtherRanks) {
  const auto schedule = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 2});
  on_ranks(2, [&](const Group& world) {
    const Mesh mesh(world, 1);
    GroupPipeline pipeline(mesh.pipeline, graph_of(blocks(2), schedule, world.rank()), schedule,
                           sharded_over(mesh.data));
    const dist_optim::OptimizerSpec spec(momentum);
    FullyShardedOptimizer(pipeline.sharded(), spec.with_group("block1", {{"lr", 0.01}}));
    EXPECT_EQ(test::kind_of([&] {
                FullyShardedOptimizer(pipeline.sharded(), spec.with_group("block2", {{"lr", 0.01}}));
              }),
              ErrorKind::invalid_argument);
  });
}

// --- Faults ---

TEST(ShardedStages, AFailedStageFailsTheStepOfAllPipelines) {
  const auto schedule = schedule::interleaved({.ranks = 2, .microbatches = 4, .chunks = 2});
  const auto errors = errors_on_ranks(4, [&](const Group& world) {
    const Mesh mesh(world, 2);
    const LayerGraph model = blocks(4, throws_in(mesh.which == 1 ? 2 : -1));
    GroupPipeline pipeline(mesh.pipeline, graph_of(model, schedule, mesh.pipeline.rank()), schedule,
                           sharded_over(mesh.data));
    pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  });
  expect_errors(errors, "out of order");
}

TEST(ShardedStages, RefusesInvalidArguments) {
  const auto schedule = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 2});
  const auto refused = [&](const std::function<GroupPipelineOptions(const Group&)>& options,
                           const std::function<LayerGraph(int rank)>& model) {
    return errors_on_ranks(2, [&](const Group& world) {
      const auto own = schedule::one_forward_one_backward({.ranks = 1, .microbatches = 2});
      const Mesh mesh(world, 2);
      GroupPipeline(mesh.pipeline, cut(model(world.rank()), {}), own, options(mesh.data));
    });
  };
  const auto one_block = [](int) { return blocks(1); };
  expect_errors(refused(
                    [](const Group&) {
                      return GroupPipelineOptions{.loss = squares, .sharded = sharded::ShardOptions{}};
                    },
                    one_block),
                ErrorKind::invalid_argument, "give GroupPipelineOptions::data_parallel");
  expect_errors(refused(
                    [](const Group& data) {
                      GroupPipelineOptions options = sharded_over(data);
                      options.optimizer = momentum;
                      return options;
                    },
                    one_block),
                ErrorKind::unsupported, "an optimizer in the options");
  expect_errors(refused(sharded_over,
                        [](int) {
                          LayerGraph model = blocks(2);
                          model.tie({"block0.0.weight", "block1.0.weight"});
                          return model;
                        }),
                ErrorKind::unsupported, "tied parameters");
  expect_errors(refused(sharded_over, [](int rank) { return blocks(1 + rank); }),
                ErrorKind::failed_precondition, "rank 1 has");
}

// Runs one pipeline of two ranks. Each rank has one stage, or two if the schedule has four.
Errors refused_by_two(const StageGraph& graph, const schedule::Schedule& schedule) {
  return errors_on_ranks(2, [&](const Group& world) {
    const Mesh mesh(world, 1);
    GroupPipeline(mesh.pipeline, graph, schedule, sharded_over(mesh.data));
  });
}

StageGraph graph_of_modules(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  StageGraph graph;
  for (std::size_t stage = 0; stage < modules.size(); ++stage)
    graph.add({modules[stage],
               [](const Values& x) { return x; },
               {stage == 0 ? step_input(0) : Source{static_cast<int>(stage) - 1}}});
  return graph;
}

TEST(ShardedStages, AllRanksOfThePipelineGetTheErrorOfARefusal) {
  const auto two = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 2});
  const auto linear = [] { return std::make_shared<torch::nn::LinearImpl>(2, 2); };
  expect_errors(refused_by_two(graph_of_modules({linear(), linear()}), two), "have a parameter weight");
  const auto overlapping = std::make_shared<torch::nn::Module>();
  const at::Tensor memory = torch::zeros({4});
  overlapping->register_parameter("a", memory.slice(0, 0, 3));
  overlapping->register_parameter("b", memory.slice(0, 1, 4));
  expect_errors(refused_by_two(graph_of_modules({overlapping, linear()}), two), "shares its memory");
}

TEST(ShardedStages, StagesOfARankMustNotShareAParameter) {
  const auto four = schedule::interleaved({.ranks = 2, .microbatches = 2, .chunks = 2});
  const auto both = std::make_shared<torch::nn::LinearImpl>(2, 2);
  std::vector<std::shared_ptr<torch::nn::Module>> modules{both, std::make_shared<torch::nn::Module>(), both,
                                                          std::make_shared<torch::nn::Module>()};
  expect_errors(refused_by_two(graph_of_modules(modules), four), "share a parameter");
}

TEST(ShardedStages, AllStagesNeedAnUnshard) {
  const auto schedule = schedule::load("0UNSHARD,0F0,0B0,0RESHARD\n1F0,1B0\n");
  expect_errors(refused_by_two(cut(blocks(2), {.cuts = {1}}), schedule), "no UNSHARD for stage 1");
}

TEST(ShardedStages, AScheduleWithTheirActionsNeedsShardedStages) {
  const auto schedule =
      schedule::add_unsharding(schedule::one_forward_one_backward({.ranks = 1, .microbatches = 2}));
  const auto errors = errors_on_ranks(
      1, [&](const Group& world) { GroupPipeline(world, cut(blocks(1), {}), schedule, {.loss = squares}); });
  expect_errors(errors, ErrorKind::unsupported);
}

}  // namespace
}  // namespace weft::pipeline::sharded_stages_test
