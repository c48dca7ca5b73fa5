#include <weft/parallel/pipeline/local_pipeline.h>

#include <weft/dist_autograd/engine/internal/generator_states.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/lowering.h>

#include <ATen/autocast_mode.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::local_pipeline_test {
namespace {

using rpc::ErrorKind;
using test::error_of;
using test::expect_error;
using testing::numbers;

at::Tensor squares(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

// A layer with a weight, a bias and a batch norm.
struct Part : torch::nn::Module {
  explicit Part(std::uint64_t seed) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    linear->weight.copy_(numbers({6, 6}, seed));
    linear->bias.copy_(numbers({6}, seed + 100));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(norm(linear(x))); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// `stages` layers with a skip connection from the first to the last one. If there are several, the first and
// the last one share their weight.
struct Model {
  explicit Model(int stages) {
    for (int i = 0; i < stages; ++i) parts.push_back(std::make_shared<Part>(static_cast<std::uint64_t>(i)));
    if (stages > 1) {
      parts.back()->linear = parts.front()->linear;
      parts.back()->replace_module("linear", parts.front()->linear);
    }
  }
  at::Tensor forward(at::Tensor x) const {
    at::Tensor first;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i + 1 == parts.size() && i > 1) x = x + first;
      x = parts[i]->forward(x);
      if (i == 0) first = x;
    }
    return x;
  }
  StageGraph graph() const {
    StageGraph graph;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto part = parts[i];
      if (i == 0) {
        graph.add(part, step_input(0));
      } else if (i + 1 < parts.size() || i == 1) {
        graph.add(part, Source{static_cast<int>(i) - 1});
      } else {
        graph.add({part,
                   [part](const Values& x) { return Values{part->forward(x.at(0) + x.at(1))}; },
                   {Source{static_cast<int>(i) - 1}, Source{0}}});
      }
    }
    return graph;
  }
  std::vector<at::Tensor> values(bool gradients) const {
    std::vector<at::Tensor> all;
    for (const auto& part : parts) {
      for (const at::Tensor& parameter : part->parameters())
        all.push_back(gradients ? parameter.grad().clone() : parameter.detach().clone());
      if (!gradients)
        for (const at::Tensor& buffer : part->buffers()) all.push_back(buffer.to(at::kDouble));
    }
    return all;
  }
  std::vector<std::shared_ptr<Part>> parts;
};

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-10, 1e-10)) << "tensor " << i << "\n" << a[i] << "\n" << b[i];
}

// Every schedule with a flush, compared with the model without stages, micro-batch by micro-batch.
class Schedules : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Flush, Schedules, ::testing::ValuesIn(testing::schedules_with_a_flush()),
                         testing::name_of_test);

TEST_P(Schedules, GiveTheGradientsOfTheWholeModel) {
  using schedule::Recompute;
  for (const auto& [ranks, microbatches, rows, recompute] : {std::tuple{2, 4, 12, Recompute::never},
                                                             {1, 3, 9, Recompute::always},
                                                             {3, 2, 7, Recompute::except_last},
                                                             {2, 8, 5, Recompute::always},
                                                             {4, 5, 23, Recompute::never}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " micro-batches");
    const auto computations = schedule::add_recomputation(
        schedule::generate(GetParam(), {.ranks = ranks, .microbatches = microbatches}), recompute);
    const Model whole(computations.stages()), split(computations.stages());
    LocalPipeline pipeline{split.graph(), computations, {.loss = loss_of(squares)}};
    torch::optim::SGD whole_steps(split.graph().parameters(), 0.1);
    torch::optim::SGD own(whole.graph().parameters(), 0.1);
    StageGraph one;
    one.add({std::make_shared<torch::nn::Module>(),
             [&](const Values& x) { return Values{whole.forward(x[0])}; },
             {step_input(0)}});
    for (int step = 0; step < 2; ++step) {
      const at::Tensor x = numbers({rows, 6}, 10 + step), y = numbers({rows, 6}, 20 + step);
      whole_steps.zero_grad();
      if (rows < 2 * microbatches)  // a batch norm refuses one row
        for (const Model* model : {&whole, &split})
          for (const auto& part : model->parts) part->norm->eval();
      const double loss = testing::step_in_parts(one, own, x, y, microbatches);
      const LocalStep result = pipeline.step({x}, {y});
      EXPECT_NEAR(result.loss.item<double>(), loss, 1e-10);
      expect_close(split.values(true), whole.values(true));
      whole_steps.step();
    }
    expect_close(split.values(false), whole.values(false));
    const at::Tensor x = numbers({rows, 6}, 30);
    pipeline.graph().train(false);
    whole.graph().train(false);
    expect_close(pipeline.evaluate({x}), {whole.forward(x)});
  }
}

// Stage 0 has two outputs. Stage 1 uses one of them twice and changes it in place. Stage 2 uses both.
struct Branches {
  Branches() {
    row->weight = row->register_parameter("row", numbers({6}, 7));
    row->bias = row->register_parameter("column", numbers({6}, 8));
  }
  // Two leaves whose gradients are views of one tensor.
  struct Sum : torch::nn::Module {
    at::Tensor weight, bias;
  };
  Values first(const at::Tensor& x) const {
    const at::Tensor y = part->forward(x);
    return {y + (row->weight.unsqueeze(0) + row->bias.unsqueeze(0)), y * 2};
  }
  at::Tensor second(at::Tensor a, const at::Tensor& b) const { return a.relu_() + b; }
  at::Tensor third(const at::Tensor& x, const at::Tensor& a, const at::Tensor& b) const {
    return head->forward(x * a + b);
  }
  at::Tensor forward(const at::Tensor& x) const {
    const Values outputs = first(x);
    const at::Tensor a = outputs[0].clone();  // relu_ is a computation of the stage
    return third(second(a, a), outputs[0], outputs[1]);
  }
  StageGraph graph() const {
    StageGraph graph;
    const auto both = std::make_shared<torch::nn::Module>();
    both->register_module("part", part);
    both->register_module("row", row);
    graph.add({both, [*this](const Values& x) { return first(x.at(0)); }, {step_input(0)}});
    graph.add({std::make_shared<Part>(9),
               [*this](const Values& x) { return Values{second(x.at(0), x.at(0))}; },
               {Source{0, 0}, Source{0, 0}}});
    graph.add({head,
               [*this](const Values& x) { return Values{third(x.at(0), x.at(1), x.at(2))}; },
               {Source{1}, Source{0, 0}, Source{0, 1}}});
    return graph;
  }
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const { return {part, row, head}; }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& module : modules())
      for (const at::Tensor& parameter : module->parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
  std::shared_ptr<Part> part = std::make_shared<Part>(1), head = std::make_shared<Part>(2);
  std::shared_ptr<Sum> row = std::make_shared<Sum>();
};

TEST(LocalPipeline, OneOfSeveralUsersMayChangeAnOutputInPlace) {
  for (const char* name : {"1f1b", "zb-h1"}) {
    const Branches whole, split;
    for (const Branches* model : {&whole, &split}) model->part->eval(), model->head->eval();
    LocalPipeline pipeline{
        split.graph(), schedule::generate(name, {.ranks = 3, .microbatches = 4}), {.loss = loss_of(squares)}};
    std::vector<at::Tensor> sums;
    for (int step = 0; step < 2; ++step) {  // gradients add up
      const at::Tensor x = numbers({12, 6}, 1 + step), y = numbers({12, 6}, 5 + step);
      // The gradients are added here, because LibTorch would use one memory for the `.grad` of the row and
      // the column.
      for (const auto& module : whole.modules()) module->zero_grad();
      squares(whole.forward(x), y).backward();
      const auto gradients = whole.gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i)
        step == 0 ? sums.push_back(gradients[i]) : (void)sums[i].add_(gradients[i]);
      pipeline.step({x}, {y});
      expect_close(split.gradients(), sums);
    }
  }
}

TEST(LocalPipeline, TheFirstStageMayChangeItsInputInPlace) {
  const auto part = std::make_shared<Part>(1), alone = std::make_shared<Part>(1);
  part->eval(), alone->eval();
  StageGraph graph;
  graph.add({part,
             [part](const Values& x) { return Values{part->forward(at::Tensor(x.at(0)).mul_(2))}; },
             {step_input(0)}});
  const at::Tensor x = numbers({4, 6}, 1), y = numbers({4, 6}, 2);
  squares(alone->forward(x * 2), y).backward();
  LocalPipeline pipeline{
      graph, schedule::fill_drain({.ranks = 1, .microbatches = 2}), {.loss = loss_of(squares)}};
  pipeline.step({x.clone()}, {y});
  expect_close({part->linear->weight.grad()}, {alone->linear->weight.grad()});
}

TEST(LocalPipeline, RunsASchedulesMessages) {
  const Model whole(2), split(2);
  schedule::Schedule computations = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3});
  computations = schedule::place_waits(schedule::place_communication(computations));
  LocalPipeline pipeline{split.graph(), computations, {.loss = loss_of(squares), .mean_loss = false}};
  const at::Tensor x = numbers({6, 6}, 1), y = numbers({6, 6}, 2);
  pipeline.step({x}, {y});
  for (int i = 0; i < 3; ++i) squares(whole.forward(x.narrow(0, 2 * i, 2)), y.narrow(0, 2 * i, 2)).backward();
  expect_close(split.values(true), whole.values(true));
}

// A loss of a mixture of experts, for example.
TEST(LocalPipeline, EvaluatesScalarOutputs) {
  const auto part = std::make_shared<Part>(1);
  part->eval();
  for (const bool mean : {true, false}) {
    StageGraph graph;
    graph.add({part,
               [part](const Values& x) {
                 const at::Tensor y = part->forward(x[0]);
                 return Values{y, y.mean(), y.square().sum()};
               },
               {step_input(0)}});
    LocalPipeline pipeline(graph, schedule::fill_drain({.ranks = 1, .microbatches = 3}),
                           {.loss = loss_of(squares), .mean_loss = mean});
    const at::Tensor x = numbers({7, 6}, 1), y = part->forward(x).detach();  // of 3, 2 and 2 rows
    const Values got = pipeline.evaluate({x});
    ASSERT_EQ(got.size(), 3U);
    const std::size_t which = mean ? 1 : 2;
    expect_close({got[0], got[which]}, {y, mean ? y.mean() : y.square().sum()});
    EXPECT_EQ(got[which].dim(), 0);
  }
}

TEST(LocalPipeline, CutsASequential) {
  torch::nn::Sequential model(torch::nn::Linear(4, 8),
                              torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                              torch::nn::Linear(8, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  model->to(at::kDouble);
  const at::Tensor x = numbers({8, 4}, 1), y = numbers({8, 2}, 2);
  squares(model->forward(x), y).backward();
  std::vector<at::Tensor> expected, own;
  for (const at::Tensor& parameter : model->parameters()) expected.push_back(parameter.grad().clone());
  model->zero_grad();
  LocalPipeline pipeline{split(model, {1, 3}),
                         schedule::one_forward_one_backward({.ranks = 3, .microbatches = 4}),
                         {.loss = loss_of(squares)}};
  const LocalStep step = pipeline.step({x}, {y});
  for (const at::Tensor& parameter : model->parameters()) own.push_back(parameter.grad());
  expect_close(own, expected);
  ASSERT_EQ(step.timeline.ranks.size(), 3U);
  for (const auto& spans : step.timeline.ranks) {
    EXPECT_EQ(spans.size(), 8U);  // a forward and a backward for each micro-batch
    for (const auto& span : spans) EXPECT_LE(span.start, span.finish);
  }
  EXPECT_EQ(error_of([&] { split(model, {3, 3}); })->kind(), ErrorKind::invalid_argument);
  EXPECT_EQ(error_of([&] { split(model, {5}); })->kind(), ErrorKind::invalid_argument);
}

TEST(LocalPipeline, FrozenStagesAndInputsOfIntegersHaveNoGradients) {
  const auto words = std::make_shared<torch::nn::EmbeddingImpl>(10, 6);
  const auto body = std::make_shared<Part>(1), head = std::make_shared<Part>(2);
  words->to(at::kDouble);
  for (const at::Tensor& parameter : body->parameters()) parameter.set_requires_grad(false);
  StageGraph graph;
  graph.add(words, step_input(0));
  graph.add(body, Source{0});
  graph.add({head,
             [head](const Values& x) { return Values{head->forward(x.at(0) * x.at(1))}; },
             {Source{1}, step_input(1)}});
  const at::Tensor tokens = at::arange(8) % 10, factors = numbers({8, 6}, 3), y = numbers({8, 6}, 4);
  LocalPipeline pipeline{graph, schedule::zb_h1({.ranks = 3, .microbatches = 2}), {.loss = loss_of(squares)}};
  pipeline.step({tokens, factors}, {y});
  std::vector<at::Tensor> own;
  for (const at::Tensor& parameter : {words->weight, head->linear->weight}) {
    own.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  for (const at::Tensor& parameter : body->parameters()) EXPECT_FALSE(parameter.grad().defined());
  for (int i = 0; i < 2; ++i) {
    const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, 4 * i, 4); };
    (squares(head->forward(body->forward(words->forward(part(tokens))) * part(factors)), part(y)) / 2)
        .backward();
  }
  expect_close(own, {words->weight.grad(), head->linear->weight.grad()});
}

// The state of the thread that calls step() applies to the stages.
TEST(LocalPipeline, StagesInheritTheCallersThreadState) {
  std::atomic<int> on{0};
  const auto part = std::make_shared<Part>(1);
  StageGraph graph;
  graph.add({part,
             [&](const Values& x) {
               on += at::autocast::is_autocast_enabled(at::kCPU);
               return Values{part->forward(x.at(0))};
             },
             {step_input(0)}});
  LocalPipeline pipeline{
      graph, schedule::fill_drain({.ranks = 1, .microbatches = 2}), {.loss = loss_of(squares)}};
  const auto run = [&] { pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)}); };
  run();
  EXPECT_EQ(on, 0);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  run();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(on, 2);
}

// --- Faults ---

class Faults : public ::testing::Test {
 protected:
  // Three stages. The middle one calls `first` before it computes.
  LocalPipeline pipeline(const std::function<void(const at::Tensor&)>& first, LocalOptions options = {}) {
    const Model model(3);
    StageGraph graph;
    graph.add(model.parts[0], step_input(0));
    graph.add({model.parts[1],
               [part = model.parts[1], first](const Values& x) {
                 first(x.at(0));
                 return Values{part->forward(x.at(0))};
               },
               {Source{0}}});
    graph.add(model.parts[2], Source{1});
    if (!options.loss) options.loss = loss_of(squares);
    parameters = graph.parameters();
    return {graph, schedule::one_forward_one_backward({.ranks = 3, .microbatches = 4}), options};
  }
  const at::Tensor x = numbers({8, 6}, 1), y = numbers({8, 6}, 2);
  std::vector<at::Tensor> parameters;
};

// An operator whose backward fails on request.
struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("no way back");
    return {gradients[0], {}};
  }
};

// The gradients of the next step contain nothing of the failed one.
TEST_F(Faults, AStageThatThrowsFailsTheStepAndLeavesNoState) {
  for (const char* name : {"1f1b", "zb-h1"})
    for (const bool in_backward : {false, true}) {
      SCOPED_TRACE(std::string(name) + (in_backward ? ", backward" : ", forward"));
      const Model model(3), fresh(3);
      int calls = 0;
      StageGraph graph = model.graph();
      StageGraph failing;
      failing.add(graph[0]);
      failing.add({graph[1].module,
                   [&](const Values& x) {
                     const bool fails = ++calls == 3;
                     if (fails && !in_backward) throw std::runtime_error("out of ideas");
                     return graph[1].forward({FailingBackward::apply(x.at(0), fails)});
                   },
                   graph[1].inputs});
      failing.add(graph[2]);
      const auto computations = schedule::generate(name, {.ranks = 3, .microbatches = 4});
      LocalPipeline pipeline{failing, computations, {.loss = loss_of(squares)}};
      for (const Model* each : {&model, &fresh})
        for (const auto& part : each->parts) part->norm->eval();
      const auto error = error_of([&] { pipeline.step({x}, {y}); });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), ErrorKind::handler_failed);
      const std::string op = !in_backward                  ? "F: out of ideas"
                             : std::string(name) == "1f1b" ? "B: no way back"
                                                           : "I: no way back";
      EXPECT_EQ(std::string(error->what()), "pipeline step: stage 1, micro-batch 2, " + op);
      for (const at::Tensor& parameter : graph.parameters()) EXPECT_FALSE(parameter.grad().defined());
      pipeline.step({y}, {x});
      LocalPipeline other{fresh.graph(), computations, {.loss = loss_of(squares)}};
      other.step({y}, {x});
      expect_close(model.values(true), fresh.values(true));
    }
}

TEST_F(Faults, WrongShapesAreErrorsOfTheirStage) {
  LocalPipeline pipeline = this->pipeline([](const at::Tensor&) {});
  expect_error([&] { pipeline.step({numbers({8, 5}, 1)}, {y}); },
               "stage 0, micro-batch 0, F: addmm: mat1 and mat2");
}

TEST_F(Faults, AStageThatStallsIsNamedAtTheTimeout) {
  int calls = 0;
  LocalPipeline pipeline = this->pipeline(
      [&](const at::Tensor&) {
        // The stage stalls. The timeout leaves the stage time to begin on a machine with other work.
        if (++calls == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
      },
      {.timeout = std::chrono::milliseconds(500)});
  expect_error([&] { pipeline.step({x}, {y}); }, ErrorKind::deadline_exceeded,
               "has not arrived within 500 ms: rank 1 computes 1F0");
}

TEST_F(Faults, InvalidArgumentsAreRefused) {
  const auto refused = [&](ErrorKind kind, const std::string& words, const auto& make) {
    expect_error(make, kind, words);
  };
  const Model model(2);
  const auto two = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  const LocalOptions options{.loss = loss_of(squares)};
  refused(ErrorKind::invalid_argument, "no loss", [&] { LocalPipeline(model.graph(), two, {}); });
  refused(ErrorKind::invalid_argument, "a schedule of 3 stages, expected 2 as in the model", [&] {
    LocalPipeline(model.graph(), schedule::fill_drain({.ranks = 3, .microbatches = 2}), options);
  });
  refused(ErrorKind::unsupported, "the action 0UNSHARD: expected no sharded stages",
          [&] { LocalPipeline(model.graph(), schedule::add_unsharding(two), options); });
  refused(ErrorKind::invalid_argument, "1 devices, expected one for each of 2 ranks",
          [&] { LocalPipeline(model.graph(), two, {.loss = loss_of(squares), .devices = {at::kCPU}}); });
  LocalPipeline pipeline(model.graph(), two, options);
  refused(ErrorKind::invalid_argument, "input 0 has no rows",
          [&] { pipeline.step({numbers({0, 6}, 1)}, {y}); });
  refused(ErrorKind::invalid_argument, "target 0 has 8 rows, expected 4",
          [&] { pipeline.step({numbers({4, 6}, 1)}, {y}); });
  refused(ErrorKind::invalid_argument, "input 0 requires grad",
          [&] { pipeline.step({numbers({8, 6}, 1).requires_grad_()}, {y}); });
  refused(ErrorKind::invalid_argument, "no inputs", [&] { pipeline.evaluate({}); });
  schedule::Schedule forwards = two;
  for (auto& actions : forwards.ranks)
    std::erase_if(actions, [](const auto& action) { return action.op != schedule::Op::forward; });
  LocalPipeline no_backward(model.graph(), forwards, options);
  refused(ErrorKind::failed_precondition, "no backward", [&] { no_backward.step({x}, {y}); });
  EXPECT_EQ(no_backward.evaluate({x}).at(0).sizes(), y.sizes());
  StageGraph graph;
  refused(ErrorKind::invalid_argument, "expected a stage before it",
          [&] { graph.add(model.parts[0], Source{0}); });
  LocalPipeline vector(model.graph(), two,
                       {.loss = [](const Values& outputs, const Values&) { return outputs[0]; }});
  refused(ErrorKind::invalid_argument, "elements, expected one", [&] { vector.step({x}, {y}); });
}

// --- Recomputation ---

schedule::Schedule recomputed(int ranks) {
  return schedule::add_recomputation(schedule::fill_drain({.ranks = ranks, .microbatches = 2}),
                                     schedule::Recompute::always);
}

std::vector<at::Tensor> gradients_with_dropout(schedule::Recompute mode, std::int64_t* forwards) {
  torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Dropout(0.5), torch::nn::Linear(6, 6));
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes(), 3));
  StageGraph graph;
  for (int stage = 0; stage < 3; ++stage)
    graph.add({model[static_cast<std::size_t>(stage)]->shared_from_this(),
               [part = model->children()[static_cast<std::size_t>(stage)], stage, forwards](const Values& x) {
                 if (stage == 1) ++*forwards;
                 if (const auto* linear = part->as<torch::nn::Linear>())
                   return Values{const_cast<torch::nn::LinearImpl*>(linear)->forward(x[0])};
                 return Values{part->as<torch::nn::Dropout>()->forward(x[0])};
               },
               {stage == 0 ? step_input(0) : Source{stage - 1}}});
  const auto schedule =
      schedule::add_recomputation(schedule::interleaved({.ranks = 1, .microbatches = 4, .chunks = 3}), mode);
  LocalPipeline pipeline(graph, schedule, {.loss = loss_of(squares)});
  torch::manual_seed(7);
  const LocalStep step = pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
  // the generator continues as without recomputation
  std::vector<at::Tensor> all{step.loss, torch::rand({2})};
  for (const at::Tensor& parameter : model->parameters()) all.push_back(parameter.grad());
  return all;
}

TEST(Recomputation, DrawsTheSameNumbersAgain) {
  std::int64_t without = 0, with = 0;
  const auto kept = gradients_with_dropout(schedule::Recompute::never, &without);
  const auto recomputed = gradients_with_dropout(schedule::Recompute::always, &with);
  ASSERT_EQ(kept.size(), recomputed.size());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], recomputed[i])) << i;
  EXPECT_EQ(without, 4);
  EXPECT_EQ(with, 8);
}

TEST(Recomputation, OfSeveralRanksRefusesRandomNumbers) {
  StageGraph graph;
  graph.add(std::make_shared<Part>(1), step_input(0));
  graph.add({std::make_shared<Part>(2),
             [](const Values& x) { return Values{torch::dropout(x[0], 0.5, true)}; },
             {Source{0}}});
  LocalPipeline pipeline(graph, recomputed(2), {.loss = loss_of(squares)});
  EXPECT_EQ(test::kind_of([&] { pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)}); }),
            ErrorKind::failed_precondition);
  EXPECT_FALSE(graph.parameters()[0].grad().defined());
}

// Another thread draws from LibTorch's generator during the runs of a stage.
struct Draws {
  std::string name;
  bool has_masks = true;        // whether the stage draws two masks
  bool is_own = false;          // from a generator of its own
  int in_first = -1;            // the other thread draws before this mask of the forward; -1: it does not
  int in_second = -1;           // the same of the recomputation
  std::vector<int> fails = {};  // the numbers of ranks with which the step fails
};

TEST(Recomputation, HasTheNumbersOfItsForwardOrFails) {
  for (const Draws& draws :
       {Draws{.name = "nobody else", .fails = {2}},
        {.name = "in the forward", .in_first = 0, .fails = {1, 2}},
        {.name = "in the recomputation", .in_second = 1, .fails = {1, 2}},
        {.name = "as often, in another order", .in_first = 0, .in_second = 1, .fails = {1, 2}},
        {.name = "no masks", .has_masks = false, .in_first = 0, .in_second = 1},
        {.name = "own generator", .is_own = true, .in_first = 0, .in_second = 1}})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(draws.name + ", " + std::to_string(ranks) + " ranks");
      const auto module = std::make_shared<torch::nn::Module>();
      const at::Tensor weight = module->register_parameter("weight", at::ones({1}, at::kDouble));
      at::Generator own = at::detail::createCPUGenerator(3);
      int runs = 0;
      const auto masked = [&, own](const Values& x) {
        const int other = runs++ == 0 ? draws.in_first : draws.in_second;
        at::Tensor y = x[0] * weight;
        for (int i = 0; i < 2; ++i) {
          if (other == i) std::thread([] { at::rand({64}); }).join();
          if (draws.has_masks)
            y = y * at::empty_like(x[0]).bernoulli_(0.5, draws.is_own ? std::optional(own) : std::nullopt);
        }
        return Values{y};
      };
      StageGraph graph;
      graph.add({module, masked, {step_input(0)}, {own}});
      graph.add({std::make_shared<torch::nn::Module>(), [](const Values& x) { return x; }, {Source{0}}});
      LocalPipeline pipeline(
          graph,
          schedule::add_recomputation(
              schedule::interleaved({.ranks = ranks, .microbatches = 1, .chunks = 2 / ranks}),
              schedule::Recompute::always),
          {.loss = [](const Values& outputs, const Values&) { return outputs[0].sum(); }});
      const at::Tensor x = numbers({1, 1000}, 1);
      double loss = 0;
      const auto error = error_of([&] { loss = pipeline.step({x}, {x}).loss.item<double>(); });
      const bool fails = std::count(draws.fails.begin(), draws.fails.end(), ranks) > 0;
      ASSERT_EQ(error.has_value(), fails) << (error ? error->what() : "no error");
      if (!fails) {
        EXPECT_NEAR(weight.grad().item<double>(), loss, 1e-9);  // the weight is 1
        continue;
      }
      EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
      EXPECT_NE(std::string(error->what()).find("RECOMPUTE: output 0 of the second run"), std::string::npos)
          << error->what();
      EXPECT_FALSE(weight.grad().defined());
    }
}

// Normalized rows have equal sums for all masks.
TEST(Recomputation, ComparesNormalizedAndNarrowOutputs) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kComplexDouble, at::kLong})
    for (const std::int64_t width : {1, 64, 509}) {
      const auto run = [&](std::uint64_t seed) {
        const at::Tensor x =
            at::randn({2000 / width, width}, at::detail::createCPUGenerator(seed), at::kDouble);
        return std::vector{(width == 1 ? x : at::softmax(x, 1)).mul(1000).to(type)};
      };
      at::Generator own = at::detail::createCPUGenerator(3);
      dist_autograd::SecondRun second({}, {own});
      at::rand({1}, own);
      second.note_first(run(1));
      EXPECT_TRUE(at::equal(second.run([&] { return run(1); })[0], run(1)[0]));
      EXPECT_TRUE(error_of([&] { second.run([&] { return run(2); }); })) << type << " " << width;
    }
}

TEST(Recomputation, ComputesTheLossOnce) {
  int losses = 0;
  StageGraph graph;
  graph.add(std::make_shared<Part>(1), step_input(0));
  const auto counted = loss_of([&](const at::Tensor& output, const at::Tensor& target) {
    ++losses;
    return squares(output, target);
  });
  LocalPipeline pipeline(graph, recomputed(1), {.loss = counted});
  EXPECT_EQ(pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)}).losses.size(), 2U);
  EXPECT_EQ(losses, 2);
}

// The first forward changes it, the second one does not.
TEST(Recomputation, ChangesABufferOnce) {
  const auto module = std::make_shared<torch::nn::Module>();
  const at::Tensor mean = module->register_buffer("mean", at::zeros({6}, at::kDouble));
  StageGraph graph;
  graph.add(std::make_shared<Part>(1), step_input(0));
  graph.add({module,
             [mean](const Values& x) {
               const at::NoGradGuard no_grad;
               mean.add_(1);
               const at::AutoGradMode grad(x[0].requires_grad());
               return Values{x[0] * 2};
             },
             {Source{0}}});
  LocalPipeline pipeline(graph, recomputed(2), {.loss = loss_of(squares)});
  pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  EXPECT_TRUE(mean.eq(2).all().item<bool>()) << mean;
}

TEST(Recomputation, RefusesAnInputThatAStageChangesInPlace) {
  const auto module = std::make_shared<Part>(1);
  StageGraph graph;
  graph.add(module, step_input(0));
  graph.add(
      {std::make_shared<Part>(2), [](const Values& x) { return Values{x[0].relu_() * 2}; }, {Source{0}}});
  LocalPipeline pipeline(graph, recomputed(2), {.loss = loss_of(squares)});
  expect_error([&] { pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)}); },
               ErrorKind::failed_precondition, "RECOMPUTE: input 0 was changed in place");
}

}  // namespace
}  // namespace weft::pipeline::local_pipeline_test
