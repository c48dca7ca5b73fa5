// Steps of stages with unusual shapes, through LocalPipeline: RankStep and StageRunner.
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>

#include <atomic>
#include <latch>
#include <mutex>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::rank_step_test {
namespace {

using namespace testing;
using schedule::Recompute;

struct Dense : torch::nn::Module {
  explicit Dense(std::uint64_t seed) : weight(register_parameter("weight", numbers({6, 6}, seed))) {}
  at::Tensor forward(const at::Tensor& x) const { return x.mm(weight).tanh(); }
  at::Tensor weight;
};

struct Nothing : torch::nn::Module {};  // a module without parameters

// The computations of the stages. Each stage has the Dense with its index.
struct Stages {
  using Compute = std::function<Values(const Dense& own, const Values& inputs)>;
  struct One {
    Compute compute;
    std::vector<Source> inputs;
  };
  explicit Stages(std::vector<One> given) : stages(std::move(given)) {
    for (std::size_t i = 0; i < stages.size(); ++i) modules.push_back(std::make_shared<Dense>(i));
  }
  StageGraph graph() const {
    StageGraph graph;
    for (std::size_t i = 0; i < stages.size(); ++i)
      graph.add(
          {modules[i],
           [own = modules[i], compute = stages[i].compute](const Values& x) { return compute(*own, x); },
           stages[i].inputs});
    return graph;
  }
  // Runs the forward of the whole model in one graph.
  Values forward(const Values& inputs) const {
    std::vector<Values> outputs;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      Values given;
      for (const Source& source : stages[i].inputs)
        given.push_back(
            source.from < 0
                ? inputs[static_cast<std::size_t>(source.output)]
                : outputs[static_cast<std::size_t>(source.from)][static_cast<std::size_t>(source.output)]);
      outputs.push_back(stages[i].compute(*modules[i], given));
    }
    return outputs.back();
  }
  std::vector<One> stages;
  std::vector<std::shared_ptr<Dense>> modules;
};

Values chain(const Dense& own, const Values& x) { return {own.forward(x[0])}; }

// Expects that a step has the gradients and the loss of the whole model.
void expect_as_whole(const Stages& model, const schedule::Schedule& computations, const Values& inputs,
                     const Loss& loss = squares) {
  SCOPED_TRACE(schedule::save(computations));
  const at::Tensor y = numbers({inputs[0].size(0), 6}, 99);
  const at::Tensor whole = loss(model.forward(inputs), {y});
  whole.backward();
  std::vector<at::Tensor> expected;
  for (const auto& module : model.modules)
    expected.push_back(std::exchange(module->weight.mutable_grad(), {}));
  LocalPipeline pipeline{model.graph(), computations, {.loss = loss}};
  Values copies;
  for (const at::Tensor& input : inputs) copies.push_back(input.clone());
  const LocalStep step = pipeline.step(copies, {y});
  EXPECT_NEAR(step.loss.item<double>(), whole.item<double>(), 1e-10);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const at::Tensor own = std::exchange(model.modules[i]->weight.mutable_grad(), {});
    ASSERT_EQ(own.defined(), expected[i].defined()) << i;
    if (own.defined()) {
      EXPECT_TRUE(at::allclose(own, expected[i], 1e-10, 1e-10)) << i << "\n" << own << "\n" << expected[i];
    }
  }
}

// Runs with whole and split backwards, with and without recomputation. Each stage is on its own rank.
void expect_in_every_way(const Stages& model, const Values& inputs, const Loss& loss = squares) {
  const int ranks = static_cast<int>(model.stages.size());
  for (const char* name : {"gpipe", "1f1b", "zb-h1"})
    for (const Recompute mode : {Recompute::never, Recompute::except_last, Recompute::always})
      expect_as_whole(
          model,
          schedule::add_recomputation(schedule::generate(name, {.ranks = ranks, .microbatches = 4}), mode),
          inputs, loss);
}

// Returns its input from a custom autograd function.
struct Same : torch::autograd::Function<Same> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 3};
  }
};

TEST(Steps, AnOutputMayBeAnInputOrAView) {
  const std::pair<const char*, Stages::Compute> ways[] = {
      {"input", [](const Dense&, const Values& x) { return x; }},
      {"view of the input", [](const Dense&, const Values& x) { return Values{x[0].flip(1).t().t()}; }},
      {"narrow view", [](const Dense& own,
                         const Values& x) { return Values{own.forward(x[0]).view({-1, 2, 3}).flatten(1)}; }},
      {"custom function", [](const Dense&, const Values& x) { return Values{Same::apply(x[0])}; }},
      {"input and its view",
       [](const Dense& own, const Values& x) { return Values{x[0].view({-1, 6}) + own.forward(x[0]) * 0}; }},
  };
  for (const auto& [name, middle] : ways) {
    SCOPED_TRACE(name);
    const Stages model({{chain, {step_input(0)}}, {middle, {Source{0}}}, {chain, {Source{1}}}});
    expect_in_every_way(model, {numbers({8, 6}, 1)});
  }
}

// The weight's gradient has one part before and one part after the other layer.
TEST(Steps, AWeightIsUsedBeforeAndBehindAnotherLayer) {
  const auto around = [](const Dense& own, const Values& x) {
    return Values{own.forward(own.forward(x[0]).mm(own.weight.t().sin())).mm(own.weight)};
  };
  const Stages model({{around, {step_input(0)}}, {around, {Source{0}}}});
  expect_in_every_way(model, {numbers({8, 6}, 1)});
}

TEST(Steps, SkipConnectionsCrossAndFollowEachOther) {
  const auto two = [](const Dense& own, const Values& x) {
    return Values{own.forward(x[0] * x[1]), x[1] + x[0]};
  };
  const Stages model(
      {{[](const Dense& own, const Values& x) { return Values{own.forward(x[0]), x[0].mm(own.weight)}; },
        {step_input(0)}},
       {two, {Source{0}, Source{0, 1}}},
       {two, {Source{1}, Source{0, 1}}},  // crosses the connection from stage 1 to stage 3
       {two, {Source{2}, Source{1, 1}}},  // follows
       {[](const Dense& own, const Values& x) { return Values{own.forward(x[0] + x[1] + x[2])}; },
        {Source{3}, Source{2, 1}, Source{3, 1}}}});
  expect_in_every_way(model, {numbers({8, 6}, 1)});
}

TEST(Steps, AStageMayIgnoreAnInputAndAnOutputMayNeedNoGradient) {
  const Stages model({{[](const Dense& own, const Values& x) {
                         const at::Tensor y = own.forward(x[0]);
                         return Values{y, y.detach() * 2, (y > 0).to(at::kLong)};
                       },
                       {step_input(0)}},
                      {[](const Dense& own, const Values& x) { return Values{own.forward(x[1])}; },
                       {Source{0}, Source{0, 1}}},  // uses only the input that has no gradient
                      {[](const Dense& own, const Values& x) { return Values{own.forward(x[0] * x[1])}; },
                       {Source{1}, Source{0, 2}, Source{0}}}});
  expect_in_every_way(model, {numbers({8, 6}, 1)});
}

TEST(Steps, AMiddleStageMayUseTheInputsOfTheStepAlone) {
  const Stages model({{chain, {step_input(0)}},
                      {chain, {step_input(1)}},
                      {[](const Dense& own, const Values& x) { return Values{own.forward(x[0] * x[1])}; },
                       {Source{0}, Source{1}}}});
  expect_in_every_way(model, {numbers({8, 6}, 1), numbers({8, 6}, 2)});
}

TEST(Steps, TheLastStageMayHaveSeveralOutputs) {
  const Stages model({{chain, {step_input(0)}},
                      {[](const Dense& own, const Values& x) {
                         const at::Tensor y = own.forward(x[0]);
                         return Values{y, y.sum(1), y.narrow(0, 0, 1)};
                       },
                       {Source{0}}}});
  const Loss both = [](const Values& outputs, const Values& targets) {
    return (outputs[0] * targets[0]).mean() + outputs[1].square().mean();
  };
  const at::Tensor x = numbers({8, 6}, 1);
  expect_in_every_way(model, {x}, both);
  LocalPipeline pipeline{
      model.graph(), schedule::fill_drain({.ranks = 2, .microbatches = 4}), {.loss = both}};
  const Values outputs = pipeline.evaluate({x}), whole = model.forward({x});
  ASSERT_EQ(outputs.size(), 3U);
  EXPECT_TRUE(at::allclose(outputs[0], whole[0]));
  EXPECT_TRUE(at::allclose(outputs[1], whole[1]));
  EXPECT_TRUE(at::allclose(outputs[2], whole[0].slice(0, 0, 8, 2)));  // one row of each micro-batch
}

TEST(Steps, MoreInputsThanTheGraphUsesAreIgnoredAndFewerAreAnError) {
  const Stages model({{chain, {step_input(1)}}});
  const auto one = schedule::fill_drain({.ranks = 1, .microbatches = 2});
  expect_as_whole(model, one, {numbers({8, 6}, 1), numbers({8, 6}, 2), numbers({8, 6}, 3)});
  LocalPipeline pipeline{model.graph(), one, {.loss = squares}};
  expect_error([&] { pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)}); },
               ErrorKind::invalid_argument, "the step has 1 inputs, and the stage uses input 1");
}

TEST(Steps, RanksMayHaveDifferentNumbersOfStages) {
  const Stages model({{chain, {step_input(0)}},
                      {chain, {Source{0}}},
                      {chain, {Source{1}}},
                      {[](const Dense& own, const Values& x) { return Values{own.forward(x[0] + x[1])}; },
                       {Source{2}, Source{0}}}});
  for (const char* text : {"0F0,0F1,1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1,0B0,0B1\n2F0,2F1,2B0,2B1\n",
                           "0F0,0F1,1F0,1F1,2F0,2F1,2I0,1I0,0I0,2I1,2W0,1W0,0W0,1I1,0I1,2W1,1W1,0W1\n"
                           "3F0,3I0,3F1,3I1,3W0,3W1\n"})
    expect_as_whole(model, schedule::load(text), {numbers({8, 6}, 1)});
}

TEST(Steps, MessagesMayBeFarFromTheirComputationsInTheSchedule) {
  const Stages model({{chain, {step_input(0)}}, {chain, {Source{0}}}});
  expect_as_whole(
      model,
      schedule::load("0F0,0F1,0SEND_F0,0F2,0SEND_F1,0SEND_F2,0RECV_B0,0RECV_B1,0B0,0B1,0RECV_B2,0B2\n"
                     "1RECV_F0,1RECV_F1,1F0,1F1,1RECV_F2,1B0,1F2,1B1,1SEND_B0,1SEND_B1,1B2,1SEND_B2\n"),
      {numbers({9, 6}, 1)});
}

// --- What runs, and how often ---

TEST(Steps, OneMicroBatchIsComputedInEachMode) {
  for (const auto& [mode, forwards] :
       {std::pair{Recompute::never, 1}, {Recompute::except_last, 1}, {Recompute::always, 2}}) {
    int count = 0;
    const Stages model({{[&](const Dense& own, const Values& x) {
                           ++count;
                           return chain(own, x);
                         },
                         {step_input(0)}}});
    expect_as_whole(model,
                    schedule::add_recomputation(schedule::fill_drain({.ranks = 1, .microbatches = 1}), mode),
                    {numbers({8, 6}, 1)});
    EXPECT_EQ(count, 1 + forwards);  // one forward of the whole model
  }
}

TEST(Steps, AnEvaluationRunsEachForwardOnceAndRecordsNothing) {
  for (const Recompute mode : {Recompute::never, Recompute::always}) {
    std::atomic<int> count{0}, recorded{0};
    const auto counts = [&](const Dense& own, const Values& x) {
      ++count;
      const Values outputs = chain(own, x);
      recorded += at::GradMode::is_enabled() || outputs[0].requires_grad();
      return outputs;
    };
    const Stages model({{counts, {step_input(0)}}, {counts, {Source{0}}}});
    const auto computations =
        schedule::add_recomputation(schedule::zb_h1({.ranks = 2, .microbatches = 4}), mode);
    LocalPipeline pipeline{model.graph(), computations, {.loss = squares}};
    const Values outputs = pipeline.evaluate({numbers({8, 6}, 1)});
    EXPECT_EQ(count, 8);
    EXPECT_EQ(recorded, 0);
    EXPECT_FALSE(outputs[0].requires_grad());
    for (const auto& module : model.modules) EXPECT_FALSE(module->weight.grad().defined());
    pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 99)});
    const at::Tensor own = std::exchange(model.modules[0]->weight.mutable_grad(), {});
    squares(model.forward({numbers({8, 6}, 1)}), {numbers({8, 6}, 99)}).backward();
    EXPECT_TRUE(at::allclose(own, model.modules[0]->weight.grad(), 1e-10, 1e-10));
  }
}

// Rank 0 starts no forward after it has seen the error. It has completed one more than rank 1.
TEST(Steps, OtherStagesStopAfterOneHasThrown) {
  std::atomic<int> first{0}, second{0};
  const Stages model({{[&](const Dense& own, const Values& x) {
                         ++first;
                         return chain(own, x);
                       },
                       {step_input(0)}},
                      {[&](const Dense&, const Values&) -> Values {
                         ++second;
                         throw std::runtime_error("no more");
                       },
                       {Source{0}}}});
  LocalPipeline pipeline{
      model.graph(), schedule::one_forward_one_backward({.ranks = 2, .microbatches = 8}), {.loss = squares}};
  EXPECT_TRUE(error_of([&] { pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)}); }));
  EXPECT_EQ(second, 1);
  EXPECT_LE(first, 2);
}

TEST(Steps, AFailedStepReturnsWhenAllStagesHaveStopped) {
  std::atomic<int> running{0};
  std::latch throws(1);
  const Stages model({{[&, count = 0](const Dense& own, const Values& x) mutable {
                         if (++count == 2) {
                           throws.count_down();
                           throw std::runtime_error("no more");
                         }
                         return chain(own, x);
                       },
                       {step_input(0)}},
                      {[&](const Dense& own, const Values& x) {
                         ++running;
                         throws.wait();
                         std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it computes
                         --running;
                         return chain(own, x);
                       },
                       {Source{0}}}});
  LocalPipeline pipeline{
      model.graph(), schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4}), {.loss = squares}};
  EXPECT_TRUE(error_of([&] { pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)}); }));
  EXPECT_EQ(running, 0);
}

// --- Memory ---

using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Tracks the memory of values that were seen.
struct Seen {
  void add(const Values& values) {
    std::lock_guard lock(mutex);
    for (const at::Tensor& value : values) memory.push_back(value.storage().getWeakStorageImpl());
  }
  std::size_t alive() {
    std::lock_guard lock(mutex);
    return static_cast<std::size_t>(
        std::count_if(memory.begin(), memory.end(), [](const Memory& each) { return !each.expired(); }));
  }
  std::mutex mutex;
  std::vector<Memory> memory;
};

TEST(Steps, AStepReleasesItsTensors) {
  for (const char* name : {"1f1b", "zb-v", "interleaved"})
    for (const Recompute mode : {Recompute::never, Recompute::always})
      for (const bool fails : {false, true}) {
        SCOPED_TRACE(std::string(name) + (fails ? ", fails" : ""));
        Seen seen;
        const auto computations =
            schedule::add_recomputation(schedule::generate(name, {.ranks = 2, .microbatches = 4}), mode);
        std::vector<Stages::One> stages;
        for (int i = 0; i < computations.stages(); ++i)
          stages.push_back({[&seen](const Dense& own, const Values& x) {
                              Values outputs{own.forward(x[0]), x[0] * 2};
                              seen.add(outputs);
                              return outputs;
                            },
                            {i == 0 ? step_input(0) : Source{i - 1, i % 2}}});
        const Stages model(stages);
        int losses = 0;
        LocalPipeline pipeline{
            model.graph(), computations, {.loss = [&](const Values& outputs, const Values& targets) {
              if (fails && ++losses == 3) throw std::runtime_error("no loss");
              return squares(outputs, targets);
            }}};
        const at::Tensor x = numbers({8, 6}, 1), y = numbers({8, 6}, 2);
        LocalStep result;
        if (fails) {
          EXPECT_TRUE(error_of([&] { pipeline.step({x}, {y}); }));
        } else {
          result = pipeline.step({x}, {y});
        }
        EXPECT_GT(seen.memory.size(), 0U);
        EXPECT_EQ(seen.alive(), 0U);
        pipeline.evaluate({x});
        EXPECT_EQ(seen.alive(), 0U);
      }
}

// On one rank, which follows the order of the schedule: when micro-batch 1 starts, no value of micro-batch 0
// is left. With recomputation only inputs are kept between forwards and backwards.
TEST(Steps, AValueIsReleasedAfterItsLastUse) {
  for (const bool trains : {false, true})
    for (const Recompute mode : {Recompute::never, Recompute::always}) {
      SCOPED_TRACE(trains ? "training" : "evaluation");
      Seen skips;
      std::vector<std::size_t> alive;
      const Stages model({{[&](const Dense& own, const Values& x) {
                             alive.push_back(skips.alive());
                             Values outputs{own.forward(x[0]), x[0].mm(own.weight)};
                             skips.add({outputs[1]});
                             return outputs;
                           },
                           {step_input(0)}},
                          {chain, {Source{0}}},
                          {[](const Dense& own, const Values& x) { return Values{own.forward(x[0] * x[1])}; },
                           {Source{1}, Source{0, 1}}}});
      const auto computations = schedule::add_recomputation(
          schedule::load("0F0,1F0,2F0,2B0,1B0,0B0,0F1,1F1,2F1,2B1,1B1,0B1\n"), mode);
      LocalPipeline pipeline{model.graph(), computations, {.loss = squares}};
      if (trains) {
        pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
      } else {
        pipeline.evaluate({numbers({8, 6}, 1)});
      }
      EXPECT_EQ(alive, std::vector<std::size_t>(trains && mode == Recompute::always ? 4 : 2));
    }
}

// The backward of stage 1 needs its input only for the gradient of this input.
TEST(Steps, AnOutputIsReleasedBetweenTheTwoPartsOfABackward) {
  Seen outputs;
  std::vector<std::size_t> alive;
  const Stages model({{[&](const Dense& own, const Values& x) {
                         alive.push_back(outputs.alive());
                         Values made{x[0].mm(own.weight)};
                         outputs.add(made);
                         return made;
                       },
                       {step_input(0)}},
                      {[](const Dense&, const Values& x) { return Values{x[0].sin()}; }, {Source{0}}}});
  LocalPipeline pipeline{
      model.graph(), schedule::load("0F0,1F0,1I0,0I0,1W0,0F1,0W0,1F1,1I1,0I1,1W1,0W1\n"), {.loss = squares}};
  pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
  EXPECT_EQ(alive, std::vector<std::size_t>(2));
}

// --- Refused ---

TEST(Steps, ARecomputationRefusesAStepsInputThatItsStageChangesInPlace) {
  const Stages model(
      {{[](const Dense& own, const Values& x) { return chain(own, {at::Tensor(x[0]).mul_(2)}); },
        {step_input(0)}}});
  const auto computations =
      schedule::add_recomputation(schedule::fill_drain({.ranks = 1, .microbatches = 2}), Recompute::always);
  LocalPipeline pipeline{model.graph(), computations, {.loss = squares}};
  expect_error([&] { pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)}); },
               ErrorKind::failed_precondition, "input 0 was changed in place");
}

// --- The position of a forward ---

TEST(Steps, AForwardKnowsItsStageAndMicroBatchAndWhetherItIsTheFirst) {
  struct Call {
    int stage, microbatch;
    bool is_first;
    auto operator<=>(const Call&) const = default;
  };
  for (const Recompute mode : {Recompute::never, Recompute::always}) {
    std::mutex mutex;
    std::vector<Call> calls;
    StageGraph graph;
    for (int stage = 0; stage < 4; ++stage)
      graph.add({std::make_shared<Dense>(static_cast<std::uint64_t>(stage)),
                 [&, own = std::make_shared<Dense>(1)](const Values& x, const StepPosition& at) {
                   std::lock_guard lock(mutex);
                   calls.push_back({at.stage, at.microbatch, at.is_first_microbatch});
                   return chain(*own, x);
                 },
                 {stage == 0 ? step_input(0) : Source{stage - 1}}});
    const auto computations =
        schedule::add_recomputation(schedule::zb_v({.ranks = 2, .microbatches = 3}), mode);
    LocalPipeline pipeline{graph, computations, {.loss = squares}};
    std::vector<Call> expected;
    for (int stage = 0; stage < 4; ++stage)
      for (int microbatch = 0; microbatch < 3; ++microbatch) {
        expected.push_back({stage, microbatch, microbatch == 0});
        if (mode == Recompute::always) expected.push_back({stage, microbatch, false});
      }
    for (int step = 0; step < 2; ++step) {
      calls.clear();
      pipeline.step({numbers({6, 6}, 1)}, {numbers({6, 6}, 2)});
      std::sort(calls.begin(), calls.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_TRUE(calls == expected);
    }
    calls.clear();
    pipeline.evaluate({numbers({6, 6}, 1)});
    EXPECT_EQ(calls.size(), 12U);
    EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [](const Call& call) { return call.is_first; }), 4);
  }
}

// A layer of a LayerGraph has the position of its stage. A forward without the parameter has none.
TEST(Steps, ALayerKnowsThePositionOfItsStage) {
  std::vector<int> stages;
  LayerGraph layers;
  for (int layer = 0; layer < 4; ++layer)
    layers.add({"layer" + std::to_string(layer),
                [&stages] {
                  const auto own = std::make_shared<Dense>(1);
                  return BuiltLayer{own, [own, &stages](const Values& x, const StepPosition& at) {
                                      stages.push_back(at.stage);
                                      return chain(*own, x);
                                    }};
                },
                {layer == 0 ? step_input(0) : Source{layer - 1}}});
  LocalPipeline pipeline{cut(layers, {.cuts = {1}}),
                         schedule::interleaved({.ranks = 1, .microbatches = 1, .chunks = 2}),
                         {.loss = squares}};
  pipeline.evaluate({numbers({6, 6}, 1)});
  EXPECT_EQ(stages, (std::vector<int>{0, 1, 1, 1}));
  EXPECT_FALSE(StageForward());
  EXPECT_FALSE(StageForward(std::function<Values(const Values&)>()));
  EXPECT_FALSE(StageForward(nullptr));
}

}  // namespace
}  // namespace weft::pipeline::rank_step_test
