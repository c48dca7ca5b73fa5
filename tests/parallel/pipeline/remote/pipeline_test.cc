#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "tests/parallel/pipeline/remote/remote_support.h"

namespace weft::pipeline::remote_pipeline_test {
namespace {

using namespace remote_support;
using testing::tied_blocks;

// Every schedule with a flush, against the layers as one stage, micro-batch by micro-batch.
class RemoteSchedules : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Flush, RemoteSchedules, ::testing::ValuesIn(testing::schedules_with_a_flush()),
                         testing::name_of_test);

TEST_P(RemoteSchedules, TrainLikeTheWholeModel) {
  using schedule::Recompute;
  for (const auto& [ranks, microbatches, rows, recompute] : {std::tuple{2, 4, 13, Recompute::never},
                                                             {3, 2, 7, Recompute::always},
                                                             {2, 3, 9, Recompute::except_last}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " micro-batches");
    const auto computations = schedule::add_recomputation(
        schedule::generate(GetParam(), {.ranks = ranks, .microbatches = microbatches}), recompute);
    const int count = computations.stages();
    Agents agents(ranks, {.layers = [count] { return tied_blocks(count); }, .loss = squares});
    Pipeline pipeline =
        got(Pipeline::create(agents.driver(), agents.workers(),
                             {.cuts = one_block_each(count), .schedule = computations, .seed = 1}));
    dist_optim::DistributedOptimizer optimizer{agents.driver(), dist_optim::synchronous, [&] {
                                                 std::vector<dist_optim::DistributedOptimizer::Module> all;
                                                 for (const auto& module : pipeline.modules())
                                                   all.push_back({module, torch::optim::SGDOptions(0.1)});
                                                 return all;
                                               }()};
    const StageGraph one = cut(tied_blocks(count), {});
    torch::optim::SGD own(one.parameters(), 0.1);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor x = numbers({rows, 6}, 10 + step), y = numbers({rows, 6}, 20 + step);
      const double loss = testing::step_in_parts(one, own, x, y, microbatches);
      const PipelineStep result = got(pipeline.step(x, y));
      EXPECT_NEAR(result.loss.item<double>(), loss, 1e-10);
      EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(microbatches));
      ASSERT_EQ(result.timeline.ranks.size(), static_cast<std::size_t>(ranks));
      for (const auto& spans : result.timeline.ranks) EXPECT_FALSE(spans.empty());
      got(optimizer.step(result.pass));
      expect_close(state_of(pipeline), state_of(*one[0].module));
    }
    const at::Tensor x = numbers({rows, 6}, 30);
    got(pipeline.train(false));
    one.train(false);
    expect_close(got(pipeline.evaluate(x)), one[0].forward({x})[0]);
  }
}

// Compares with LocalPipeline, which equals one process with the same versions of the weights
// (weight_versions_test.cc).
TEST(RemoteOptimizers, RunPipedreamAndContinueFromTheirState) {
  const auto momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
  for (const schedule::Schedule& schedule :
       {schedule::pipedream({.ranks = 3, .microbatches = 5}),
        schedule::pipedream_2bw({.ranks = 3, .microbatches = 2}, 3),
        schedule::interleaved({.ranks = 3, .microbatches = 4, .chunks = 1})}) {
    const StageGraph graph = cut(blocks(3), {.cuts = {1, 2}});
    LocalPipeline local(graph, schedule, {.loss = squares, .optimizer = momentum});
    Agents agents(3, {.layers = [] { return blocks(3); }, .loss = squares});
    const PipelineOptions options{.cuts = {1, 2}, .schedule = schedule, .optimizer = momentum};
    Pipeline pipeline = got(Pipeline::create(agents.driver(), agents.workers(), options));
    const at::Tensor x = numbers({13, 6}, 1), y = numbers({13, 6}, 2);
    const auto expect_equal = [&] {
      State expected;
      for (int stage = 0; stage < 3; ++stage)
        for (const auto& [name, value] : state_of(*graph[stage].module)) expected[name] = value;
      expect_close(state_of(pipeline), expected);
    };
    for (int step = 0; step < 2; ++step) {
      const LocalStep by_threads = local.step({x}, {y});
      const PipelineStep result = got(pipeline.step(x, y));
      EXPECT_NEAR(result.loss.item<double>(), by_threads.loss.item<double>(), 1e-10);
      expect_equal();
    }
    const auto state = got(pipeline.save_optimizer_state());
    got(pipeline.set_learning_rate(0));
    const auto before = state_of(pipeline);
    got(pipeline.step(x, y));
    EXPECT_TRUE(at::equal(state_of(pipeline).at("block0.0.weight"), before.at("block0.0.weight")));
    got(pipeline.load_optimizer_state(state));  // with the rate
    for (int stage = 0; stage < 3; ++stage) local.optimizer(stage).set_learning_rate(0, std::nullopt);
    local.step({x}, {y});  // to update the statistics of the batch norms
    for (int stage = 0; stage < 3; ++stage)
      local.optimizer(stage).set_state(state.modules[static_cast<std::size_t>(stage)]);
    local.step({x}, {y});
    got(pipeline.step(x, y));
    expect_equal();
  }
}

TEST(RemotePipeline, AWorkerRefusesPlansThatDoNotFit) {
  Agents agents(1, {.layers = [] { return blocks(2); }, .loss = squares});
  const auto expect_refused = [&](const WorkerPlan& plan, const std::string& text) {
    test::expect_error([&] { got(agents.workers()[0].call<&PipelineService::install>(plan)); }, text);
  };
  const WorkerPlan plan{.workers = {rpc::AgentId{}},
                        .schedule = schedule::save(schedule::fill_drain({.ranks = 2, .microbatches = 2})),
                        .microbatches = 2,
                        .layers = blocks(2).names(),
                        .cuts = {1}};
  expect_refused(plan, "rank 0 of 1 workers, expected one of the schedule's 2 ranks");
  WorkerPlan uncut = plan;
  uncut.cuts = {};
  expect_refused(uncut, "a schedule of 2 stages, expected 1 as in the model");
}

// Two workers with one stage each, of the given layers.
struct Two {
  explicit Two(const std::function<LayerGraph()>& model,
               schedule::Schedule schedule = schedule::fill_drain({.ranks = 2, .microbatches = 4}),
               std::chrono::nanoseconds timeout = std::chrono::minutes{1})
      : agents(2, {.layers = model, .loss = squares}),
        pipeline(got(Pipeline::create(agents.driver(), agents.workers(),
                                      {.cuts = {1}, .schedule = std::move(schedule), .timeout = timeout}))) {}
  rpc::Error error_of_step() {
    const auto error = error_of([&] { got(pipeline.step(x, y)); });
    return error.value_or(rpc::Error(ErrorKind::internal, "the step did not fail"));
  }
  void expect_failing_step(ErrorKind kind, const std::string& text) {
    test::expect_error([&] { got(pipeline.step(x, y)); }, kind, text);
  }
  Agents agents;
  Pipeline pipeline;
  const at::Tensor x = numbers({8, 6}, 1), y = numbers({8, 6}, 2);
};

// Holds the forwards of a stage until the test releases them.
struct Hold {
  explicit Hold(int stage) : held(stage) {}
  std::function<LayerGraph()> model() {
    return [this] {
      return blocks(2, [this](int stage) {
        if (stage != held) return;
        reached.set();
        released.wait();
      });
    };
  }
  const int held;
  test::Event reached, released;
};
const schedule::Schedule one_microbatch = schedule::fill_drain({.ranks = 2, .microbatches = 1});

TEST(RemotePipeline, AStageThatThrowsFailsTheStepOnAllWorkers) {
  std::atomic<int> calls = 0;
  Two two([&] {
    return blocks(2, [&](int stage) {
      if (stage == 1 && ++calls == 2) throw std::runtime_error("out of order");
    });
  });
  two.expect_failing_step(ErrorKind::handler_failed, "stage 1, micro-batch 1, F: out of order");
  got(two.pipeline.step(two.x, two.y));  // the failed step does not affect the next one
}

TEST(RemotePipeline, AStepThatFailsLeavesNoGradients) {
  std::atomic<int> calls = 0;
  const auto fails_once = [&](int stage) {
    if (stage == 0 && ++calls == 4) throw std::runtime_error("once");
  };
  Two two([&] { return blocks(2, fails_once); },
          schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4}));
  dist_optim::DistributedOptimizer optimizer(two.agents.driver(), torch::optim::SGDOptions(0.1),
                                             dist_optim::synchronous, two.pipeline.modules());
  Two other([] { return blocks(2); }, schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4}));
  dist_optim::DistributedOptimizer other_optimizer(other.agents.driver(), torch::optim::SGDOptions(0.1),
                                                   dist_optim::synchronous, other.pipeline.modules());
  two.expect_failing_step(ErrorKind::handler_failed, "stage 0, micro-batch 3, F: once");
  got(two.pipeline.train(false));
  got(other.pipeline.train(false));
  const State before = state_of(two.pipeline);
  for (const auto& each : other.pipeline.stages()) {  // the running statistics after the failed step
    dist_autograd::StateDict state;
    for (const auto& [name, tensor] : got(dist_autograd::RemoteModule(each).state_dict()))
      state.push_back({name, before.at(name)});
    got(dist_autograd::RemoteModule(each).load_state_dict(state));
  }
  got(optimizer.step(got(two.pipeline.step(two.x, two.y)).pass));
  got(other_optimizer.step(got(other.pipeline.step(two.x, two.y)).pass));
  expect_close(state_of(two.pipeline), state_of(other.pipeline));
}

TEST(RemotePipeline, ALostWorkerFailsTheStep) {
  Hold hold(1);
  Two two(hold.model());
  auto step = two.pipeline.step(two.x, two.y);
  hold.reached.wait();
  std::thread killer([&] { two.agents.kill(2); });
  const auto error = error_of([&] { got(std::move(step)); });
  hold.released.set();
  killer.join();
  ASSERT_TRUE(error);
  EXPECT_TRUE(error->kind() == ErrorKind::owner_lost || error->kind() == ErrorKind::shut_down)
      << error->what();
}

TEST(RemotePipeline, AValueThatDoesNotArriveIsAnError) {
  Hold hold(0);
  Two two(hold.model(), schedule::fill_drain({.ranks = 2, .microbatches = 4}),
          std::chrono::milliseconds{100});
  two.expect_failing_step(
      ErrorKind::deadline_exceeded,
      "stage 1, micro-batch 0, F: the activation from stage 0 has not arrived within 100 ms");
  hold.released.set();
}

// The weight gradient of stage 0 is the last action of the step, and no stage waits for it.
TEST(RemotePipeline, AHungLastActionIsAnError) {
  std::latch released(1);
  std::atomic<int> calls = 0;
  const auto layers = [&] {
    const LayerGraph model = blocks(2);
    const Layer first = model[0];
    LayerGraph hung;
    hung.add({first.name,
              [&, build = first.build] {
                BuiltLayer built = build();
                built.module->named_parameters()["0.weight"].register_hook([&](const at::Tensor& gradient) {
                  if (++calls == 4) released.wait();
                  return gradient;
                });
                return built;
              },
              first.inputs});
    hung.add(model[1]);
    return hung;
  };
  Two two(layers, schedule::fill_drain({.ranks = 2, .microbatches = 4}), std::chrono::seconds{1});
  two.expect_failing_step(ErrorKind::deadline_exceeded,
                          "no stage has completed within 1000 ms after another one; not complete: stage 0");
  released.count_down();
}

// The last stage of an evaluation stalls. The first stage must not fill its memory in the meantime.
TEST(RemotePipeline, AProducerHasALimitedNumberOfValuesInFlight) {
  std::latch released(1);
  std::atomic<int> made = 0;
  test::Event blocked;
  Two two(
      [&] {
        return blocks(2, [&](int stage) {
          if (stage == 0) {
            if (++made == 4) blocked.set();
          } else {
            blocked.wait();
            released.wait();
          }
        });
      },
      schedule::one_forward_one_backward({.ranks = 2, .microbatches = 32}));
  got(two.pipeline.train(false));
  auto outputs = two.pipeline.evaluate(numbers({32, 6}, 3));
  blocked.wait();
  EXPECT_LT(made, 8);
  released.count_down();
  EXPECT_EQ(got(std::move(outputs)).size(0), 32);
  EXPECT_EQ(made, 32);
}

TEST(RemotePipeline, FewerRowsThanMicrobatchesUseOneRowEach) {
  Two two([] { return blocks(2); });
  got(two.pipeline.train(false));
  EXPECT_EQ(got(two.pipeline.step(two.x.slice(0, 0, 3), two.y.slice(0, 0, 3))).losses.size(), 3U);
}

TEST(RemotePipeline, ItsDestructorReleasesTheStages) {
  Agents agents(1, {.layers = [] { return blocks(1); }, .loss = squares});
  const auto workers = [&] { return agents.workers()[0]; };
  {
    const Pipeline pipeline = got(Pipeline::create(
        agents.driver(), {workers()}, {.cuts = {}, .schedule = schedule::fill_drain({.ranks = 1})}));
    EXPECT_EQ(agents.stages_of(1), 1U);
  }
  test::eventually("the worker has no stages", [&] { return agents.stages_of(1) == 0; });
}

TEST(RemotePipeline, RefusesInvalidArguments) {
  Agents agents(2, {.layers = [] { return blocks(2); }, .loss = squares});
  const auto refused = [&](std::vector<rpc::Peer> workers, PipelineOptions options) {
    return test::message_of(
        [&] { got(Pipeline::create(agents.driver(), std::move(workers), std::move(options))); });
  };
  const auto gpipe = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  const auto workers = agents.workers();
  EXPECT_EQ(refused(workers, {.cuts = {}, .schedule = gpipe}),
            "Pipeline::create: a schedule of 2 stages, expected 1 as in the model");
  EXPECT_EQ(refused({workers[0]}, {.cuts = {1}, .schedule = gpipe}),
            "Pipeline::create: 1 workers, expected one for each of 2 ranks");
  EXPECT_EQ(refused({workers[0], workers[0]}, {.cuts = {1}, .schedule = gpipe}),
            "Pipeline::create: two ranks have the worker worker1, expected one agent for each rank");
  EXPECT_EQ(refused(workers, {.cuts = {2}, .schedule = gpipe}),
            "pipeline layers: a stage of the layers 2 to 1: expected ascending cuts between 1 and 1");
  EXPECT_EQ(refused(workers, {.cuts = {0, 1}, .schedule = gpipe}),
            "pipeline layers: 3 stages, but only 2 layers: expected at most one stage for each layer");
  EXPECT_EQ(
      refused(workers, {.cuts = {1}, .schedule = schedule::add_optimizer_steps(gpipe)}),
      "Pipeline::create: the schedule steps parameters, and there is no optimizer: give one in the options");
  Pipeline pipeline = got(Pipeline::create(agents.driver(), workers, {.cuts = {1}, .schedule = gpipe}));
  EXPECT_EQ(test::message_of([&] { got(pipeline.step(numbers({4, 6}, 1), numbers({3, 6}, 1))); }),
            "pipeline step: target 0 has 3 rows, expected 4 as the tensors before it");
}

TEST(RemotePipeline, AStepThatCannotStartDoesNotCount) {
  Two two([] { return blocks(2); });
  const at::Tensor quantized = at::quantize_per_tensor(at::ones({8, 6}), 0.1, 0, at::kQInt8);
  EXPECT_TRUE(error_of([&] { got(two.pipeline.step(quantized, two.y)); })) << "it cannot be sent";
  got(two.pipeline.step(two.x, two.y));
}

TEST(RemotePipeline, AnErrorOfAStageIsReportedAsTheCause) {
  Two two([] {
    return blocks(2, [](int stage) {
      if (stage == 0) throw rpc::Error(ErrorKind::aborted, "a group was aborted");
    });
  });
  two.expect_failing_step(ErrorKind::handler_failed, "stage 0, micro-batch 0, F: a group was aborted");
}

TEST(RemotePipeline, OneStepIsInFlightAtATime) {
  Hold hold(0);
  Two two(hold.model(), one_microbatch);
  auto first = two.pipeline.step(two.x, two.y);
  hold.reached.wait();
  EXPECT_EQ(two.error_of_step().kind(), ErrorKind::failed_precondition);
  hold.released.set();
  got(std::move(first));
}

TEST(RemotePipeline, ACancelledStepStopsOnAllWorkers) {
  Hold hold(0);
  Two two(hold.model(), one_microbatch);
  auto step = two.pipeline.step(two.x, two.y);
  hold.reached.wait();
  step.cancel();
  hold.released.set();
  EXPECT_EQ(test::kind_of([&] { got(std::move(step)); }), ErrorKind::cancelled);
  got(two.pipeline.step(two.x, two.y));
}

TEST(RemotePipeline, TheEndOfTheDriverReleasesTheStages) {
  Hold hold(1);
  Two two(hold.model(), one_microbatch);
  auto step = two.pipeline.step(two.x, two.y);
  hold.reached.wait();
  two.agents.kill(0);
  EXPECT_TRUE(error_of([&] { got(std::move(step)); }));
  hold.released.set();
  for (const std::size_t worker : {1, 2})
    test::eventually("the worker has no stages", [&] { return two.agents.stages_of(worker) == 0; });
}

TEST(RemotePipeline, WorkersMustHaveTheModelOfTheDriver) {
  int built = 0;
  Agents agents(1, {.layers =
                        [&] {
                          LayerGraph model;
                          model.add(++built == 1 ? "a" : "b", [] { return torch::nn::Linear(6, 6); });
                          return model;
                        },
                    .loss = squares});
  test::expect_error(
      [&] {
        got(Pipeline::create(agents.driver(), agents.workers(),
                             {.cuts = {}, .schedule = schedule::fill_drain({.ranks = 1})}));
      },
      "worker1 has another model than the driver: layer 0 is b, expected a");
}

TEST(RemotePipeline, StagesOfAWorkerShareNoParameter) {
  const auto shared = torch::nn::Linear(6, 6);
  Agents agents(1, {.layers =
                        [&] {
                          LayerGraph model;
                          for (const char* name : {"a", "b"}) model.add(name, [&] { return shared; });
                          return model;
                        },
                    .loss = squares});
  test::expect_error(
      [&] {
        got(Pipeline::create(agents.driver(), agents.workers(),
                             {.cuts = {1}, .schedule = schedule::interleaved({.ranks = 1, .chunks = 2})}));
      },
      "the stages 0 and 1 share a parameter");
}

TEST(RemotePipeline, TakesAScheduleWithMessages) {
  Two two([] { return blocks(2); },
          schedule::place_communication(schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4})));
  got(two.pipeline.step(two.x, two.y));
}

// --- Layers ---

TEST(LayerGraph, CutsAtAnyLayerHaveEqualResults) {
  const at::Tensor x = numbers({5, 6}, 1);
  const StageGraph whole = cut(blocks(5), {});
  whole.train(false);
  const at::Tensor expected = whole[0].forward({x})[0];
  for (const std::vector<int>& cuts : {std::vector<int>{1}, {2}, {4}, {1, 2}, {2, 3, 4}}) {
    const StageGraph stages = cut(blocks(5), {.cuts = cuts});
    stages.train(false);
    std::map<Source, at::Tensor> values{{step_input(0), x}};
    for (int stage = 0; stage < stages.size(); ++stage) {
      Values inputs;
      for (const Source& source : stages[stage].inputs) inputs.push_back(values.at(source));
      const Values outputs = stages[stage].forward(inputs);
      for (std::size_t i = 0; i < outputs.size(); ++i) values[{stage, static_cast<int>(i)}] = outputs[i];
    }
    expect_close(values.at({stages.size() - 1, 0}), expected);
  }
  const StageGraph skipping = cut(blocks(5), {.cuts = {1, 3}});
  EXPECT_EQ(skipping.edges(), (std::vector<schedule::Edge>{{0, 1}, {0, 2}, {1, 2}}));
}

TEST(LayerGraph, BuildsOnlyTheRequestedStages) {
  int built = 0;
  LayerGraph model;
  for (const char* name : {"a", "b", "c"})
    model.add(name, [&built] {
      ++built;
      return torch::nn::Linear(2, 2);
    });
  const StageGraph stages = cut(model, {.cuts = {1, 2}, .built = std::set<int>{1}});
  EXPECT_EQ(built, 1);
  EXPECT_FALSE(stages.is_here(0));
  EXPECT_TRUE(stages.is_here(1));
  EXPECT_EQ(stages.edges(), schedule::chain(3));
  EXPECT_EQ(stages.parameters().size(), 2U);
}

TEST(LayerGraph, ASeedGivesTheSameValuesForAllCuts) {
  LayerGraph model;
  for (const char* name : {"a", "b", "c"}) model.add(name, [] { return torch::nn::Linear(3, 3); });
  torch::manual_seed(5);
  const at::Tensor next = torch::rand({4});
  torch::manual_seed(5);
  const StageGraph whole = cut(model, {.seed = 1});
  EXPECT_TRUE(at::equal(torch::rand({4}), next)) << "the generator is as it was";
  const StageGraph last = cut(model, {.cuts = {1, 2}, .built = std::set<int>{2}, .seed = 1});
  EXPECT_TRUE(at::equal(last[2].module->named_parameters()["c.weight"],
                        whole[0].module->named_parameters()["c.weight"]));
  EXPECT_FALSE(at::equal(whole[0].module->named_parameters()["a.weight"],
                         whole[0].module->named_parameters()["c.weight"]));
  const StageGraph other = cut(model, {.seed = 2});
  EXPECT_FALSE(at::equal(other[0].module->named_parameters()["c.weight"],
                         whole[0].module->named_parameters()["c.weight"]));
}

TEST(LayerGraph, RefusesLayersThatDoNotFit) {
  LayerGraph model;
  const auto linear = [] { return torch::nn::Linear(2, 2); };
  model.add("a", linear);
  EXPECT_EQ(test::message_of([&] { model.add("a", linear); }),
            "pipeline layers: two layers have the name a, expected unique names");
  EXPECT_EQ(test::message_of([&] { model.add("b.c", linear); }),
            "pipeline layers: the name 'b.c': expected a name without dots");
  EXPECT_EQ(test::message_of([&] { model.add("b", linear, Source{1}); }),
            "pipeline layers: layer b uses output 0 of layer 1: expected an output of one of the 1 layers "
            "before, or an input of the step");
  model.add("b", linear, Source{0, 1});
  EXPECT_EQ(test::message_of([&] { cut(model, {})[0].forward({at::ones({1, 2})}); }),
            "pipeline layers: layer a has no output 1, which layer b uses: expected an output of the layer");
}

}  // namespace
}  // namespace weft::pipeline::remote_pipeline_test
