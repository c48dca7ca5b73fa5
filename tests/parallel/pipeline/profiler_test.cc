#include <weft/parallel/pipeline/profiler.h>

#include <weft/parallel/partition/balance.h>
#include <weft/parallel/partition/pipedream.h>
#include <weft/parallel/partition/profile_text.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "tests/support/errors.h"

namespace weft::pipeline::profiler_test {
namespace {

using partition::Layer;
using test::message_of;

torch::nn::Sequential three_layers() {
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
}

// The layers without their times, which differ between runs.
std::vector<Layer> sizes_of(partition::Profile profile) {
  for (Layer& layer : profile.layers) layer.forward_ms = layer.backward_ms = 0;
  return profile.layers;
}

TEST(Profiler, CountsTheBytesOfEachLayer) {
  const partition::Profile found = profile(three_layers(), torch::randn({3, 4}));
  EXPECT_EQ(sizes_of(found),
            (std::vector<Layer>{{"input0", "Input0", 0, 0, 3 * 4 * 4, 0},
                                {"0", "torch::nn::Linear(in_features=4, out_features=8, bias=true)", 0, 0,
                                 3 * 8 * 4, (4 * 8 + 8) * 4},
                                {"1", "torch::nn::Tanh()", 0, 0, 3 * 8 * 4, 0},
                                {"2", "torch::nn::Linear(in_features=8, out_features=2, bias=true)", 0, 0,
                                 3 * 2 * 4, (8 * 2 + 2) * 4}}));
  EXPECT_EQ(found.edges, (std::vector<partition::Edge>{{0, 1}, {1, 2}, {2, 3}}));
  for (std::size_t layer = 1; layer < 4; ++layer) {
    EXPECT_GT(found.layers[layer].forward_ms, 0);
    EXPECT_GT(found.layers[layer].backward_ms, 0);
  }
}

TEST(Profiler, ItsTextRoundTrips) {
  const partition::Profile found = profile(three_layers(), torch::randn({3, 4}));
  EXPECT_EQ(partition::parse_profile(partition::to_text(found)), found);
}

struct Sum : torch::nn::Module {};  // of its inputs

// Two branches and a second, unused output; double precision.
TEST(Profiler, FollowsTheGraph) {
  StageGraph graph;
  const auto linear = [] {
    torch::nn::Linear made(2, 2);
    made->to(at::kDouble);
    return made.ptr();
  };
  const int left = graph.add(linear(), step_input(1));
  const int right = graph.add(linear(), step_input(0));
  graph.add({std::make_shared<Sum>(),
             [](const Values& x) { return Values{x[0] + x[1], x[0].sum()}; },
             {{left}, {right}}});
  const Values sample{torch::randn({5, 2}, at::kDouble), torch::randn({5, 2}, at::kDouble)};
  const partition::Profile found = profile(graph, sample, {.names = {"left", "right", "sum"}});
  ASSERT_EQ(found.layers.size(), 5U);
  EXPECT_EQ(found.layers[0].name, "input1");
  EXPECT_EQ(found.layers[1].name, "input0");
  EXPECT_EQ(found.layers[2].name, "left");
  EXPECT_EQ(found.layers[2].parameter_bytes, (2 * 2 + 2) * 8);
  EXPECT_EQ(found.layers[4].activation_bytes, 5 * 2 * 8 + 8);
  EXPECT_EQ(found.edges, (std::vector<partition::Edge>{{0, 2}, {1, 3}, {2, 4}, {3, 4}}));
}

// A layer counts its runs.
struct Counted : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return x * scale;
  }
  int runs = 0;
  at::Tensor scale = register_parameter("scale", torch::ones({}));
};

TEST(Profiler, RunsEachLayerAloneAndKeepsGradients) {
  const auto first = std::make_shared<Counted>(), second = std::make_shared<Counted>();
  first->scale.mutable_grad() = torch::full({}, 7.0F);
  StageGraph graph;
  graph.add(second, Source{graph.add(first, step_input(0))});
  profile(graph, {torch::randn({2})}, {.rounds = 3, .warm_up = 2});
  EXPECT_EQ(first->runs, 5);
  EXPECT_EQ(second->runs, 5);
  EXPECT_EQ(first->scale.grad().item<float>(), 7);
  EXPECT_FALSE(second->scale.grad().defined());
}

// Each layer is measured in training mode; modes and statistics are as before.
TEST(Profiler, MeasuresTrainingAndLeavesTheModelUnchanged) {
  for (const bool fails : {false, true}) {
    torch::nn::Sequential model(torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5),
                                torch::nn::BatchNorm1d(4));
    std::vector<bool> modes;
    model->push_back(torch::nn::Functional([&, sequence = model.ptr().get()](const at::Tensor& x) {
      for (const auto& each : sequence->children()) modes.push_back(each->is_training());
      if (fails) throw std::runtime_error("no measurement");
      return x * 2;
    }));
    model->eval();
    model->children()[2]->train();
    const auto buffers = [&] {
      std::vector<at::Tensor> all;
      for (const at::Tensor& buffer : model->buffers()) all.push_back(buffer.clone());
      return all;
    };
    const auto before = buffers();
    if (fails) {
      EXPECT_THROW(profile(model, torch::randn({8, 4})), std::runtime_error);
    } else {
      profile(model, torch::randn({8, 4}), {.rounds = 1, .warm_up = 0});
    }
    EXPECT_EQ(modes, std::vector<bool>(4, true));
    EXPECT_FALSE(model->is_training());
    EXPECT_FALSE(model->children()[1]->is_training());
    EXPECT_TRUE(model->children()[2]->is_training());
    const auto after = buffers();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
  }
}

TEST(Profiler, CutsCountLayersWithoutInputsAndNamedLikeInputs) {
  partition::Profile measured{.layers = {{.name = "input0", .description = "Input0"},
                                         {.name = "embedding", .description = "InputEmbedding"},
                                         {.name = "positions", .description = "Positions"},
                                         {.name = "sum", .description = "Sum"},
                                         {.name = "head", .description = "Linear"}},
                              .edges = {{0, 1}, {1, 3}, {2, 3}, {3, 4}}};
  const std::vector<std::size_t> layers{3, 2};
  EXPECT_EQ(cuts_of(measured, partition::cut_by_count(measured, layers)), std::vector<int>{2});
}

// Two layers take far more time than the others together.
TEST(Profiler, ItsTimesBalanceTheStages) {
  const auto takes = [](int milliseconds) {
    return torch::nn::Functional([milliseconds](const at::Tensor& x) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      return x * 2;
    });
  };
  torch::nn::Sequential model(takes(30), takes(30), takes(0), takes(0));
  const partition::Profile measured = profile(model, torch::randn({2}), {.rounds = 3});
  EXPECT_EQ(cuts_of(measured, partition::balance_by_time(measured, 2)), std::vector<int>{1});
}

// The page's four lines, with the heaviest layer in front.
TEST(Profiler, AHeavyFirstLayerIsAStage) {
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 2));
  partition::Profile measured = profile(model, torch::randn({3, 4}));
  for (std::size_t layer = 1; layer < 4; ++layer) measured.layers[layer].forward_ms = layer == 1 ? 100 : 1;
  const auto cuts = cuts_of(measured, partition::balance_exactly(measured, 3));
  EXPECT_EQ(cuts, (std::vector<int>{1, 2}));
  EXPECT_EQ(split(model, cuts).size(), 3);
}

// The backward uses the results of all three functions in the layer.
TEST(Profiler, CountsTensorsThatAForwardSaves) {
  torch::nn::Sequential model(
      torch::nn::Linear(10, 10),
      torch::nn::Functional([](const at::Tensor& x) { return x.tanh().tanh().tanh(); }),
      torch::nn::Functional([](const at::Tensor& x) { return x.add(1).add(1).add(1); }));
  const auto bytes = [&](ProfileOptions::Activations activations) {
    std::vector<double> all;
    for (const Layer& layer :
         profile(model, torch::randn({10, 10}), {.rounds = 1, .activations = activations}).layers)
      all.push_back(layer.activation_bytes);
    return all;
  };
  EXPECT_EQ(bytes(ProfileOptions::Activations::outputs), (std::vector<double>{400, 400, 400, 400}));
  EXPECT_EQ(bytes(ProfileOptions::Activations::kept), (std::vector<double>{400, 400, 1200, 400}));
}

TEST(Profiler, ALayerWithoutGradientsHasNoBackward) {
  StageGraph graph;
  graph.add(
      {std::make_shared<Sum>(), [](const Values& x) { return Values{x[0].argmax()}; }, {step_input(0)}});
  EXPECT_EQ(profile(graph, {torch::randn({2})}).layers[1].activation_bytes, 8);
}

TEST(Profiler, RefusesUnmeasurableModels) {
  const at::Tensor sample = torch::randn({3, 4});
  EXPECT_EQ(message_of([] { return profile(StageGraph{}, {}); }),
            "profile: the graph has no layers, expected at least one");
  EXPECT_EQ(message_of([&] { return profile(three_layers(), sample, {.rounds = 0}); }),
            "profile: 0 rounds after 1, expected at least 1 after at least 0");
  EXPECT_EQ(message_of([&] { return profile(three_layers(), sample, {.names = {"a"}}); }),
            "profile: 1 names of 3 layers, expected one each");
  EXPECT_EQ(message_of([&] { return profile(three_layers(), sample, {.names = {"a", "a", "b"}}); }),
            "profile: two layers have the name 'a', expected unique names");
  StageGraph graph;
  graph.add(std::make_shared<Counted>(), step_input(2));
  EXPECT_EQ(message_of([&] { return profile(graph, {sample}); }),
            "profile: a layer uses input 2 of the step, but the sample has 1 values, expected at least 3");
}

}  // namespace
}  // namespace weft::pipeline::profiler_test
