// Tied weights of layers: initial values, and refused ties. group_pipeline_test.cc and
// remote/pipeline_test.cc test their training.
#include <weft/parallel/pipeline/local_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::ties_test {
namespace {

using test::message_of;
using testing::blocks;
using testing::numbers;
using testing::squares;

LayerGraph tied() {
  LayerGraph model = blocks(3);
  model.tie({"block0.0.weight", "block1.0.weight", "block2.0.weight"});
  return model;
}

TEST(Ties, StartWithTheValueOfTheFirstParameterOnEachWorker) {
  const at::Tensor first = numbers({6, 6}, 0);
  for (const std::set<int>& built : {std::set{0, 1, 2}, {1}, {0, 2}}) {
    const StageGraph graph = cut(tied(), {.cuts = {1, 2}, .built = built, .seed = 1});
    for (const int stage : built)
      EXPECT_TRUE(at::equal(graph.parameter({stage, "block" + std::to_string(stage) + ".0.weight"}), first));
  }
}

TEST(Ties, OnThreadsTrainLikeLayersThatShareAParameter) {
  const StageGraph one = cut(tied(), {});
  torch::optim::SGD own(one.parameters(), 0.1);
  const StageGraph graph = cut(tied(), {.cuts = {1, 2}});
  LocalPipeline pipeline(graph, schedule::one_forward_one_backward({.ranks = 3, .microbatches = 2}),
                         {.loss = squares});
  torch::optim::SGD optimizer(graph.parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = numbers({8, 6}, 10 + step), y = numbers({8, 6}, 20 + step);
    testing::step_in_parts(one, own, x, y, 2);
    optimizer.zero_grad();
    pipeline.step({x}, {y});
    optimizer.step();
  }
  const auto got = graph.parameters(), expected = one.parameters();
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-10, 1e-10)) << i;
  EXPECT_TRUE(at::equal(graph.parameter({0, "block0.0.weight"}), graph.parameter({2, "block2.0.weight"})));
}

TEST(Ties, RefuseInvalidParameters) {
  LayerGraph model = blocks(2);
  EXPECT_EQ(message_of([&] { model.tie({"block0.0.weight"}); }),
            "pipeline layers: a tie has 1 parameters, expected at least 2");
  EXPECT_EQ(message_of([&] { model.tie({"block0.0.weight", "block0.0.weight"}); }),
            "pipeline layers: a tie names block0.0.weight twice, expected different parameters");
  EXPECT_EQ(message_of([&] { model.tie({"block0.0.weight", "block2.0.weight"}); }),
            "pipeline layers: the parameter block2.0.weight of a tie: expected LAYER.PARAMETER");
  model.tie({"block0.0.weight", "block1.0.weight"});
  EXPECT_EQ(message_of([&] { model.tie({"block0.0.weight", "block1.0.bias"}); }),
            "pipeline layers: the parameter block0.0.weight is in two ties, expected it in one");
  for (const int built : {0, 1})
    EXPECT_EQ(
        message_of([&] { cut(model, {.cuts = {1}, .built = std::set{built}}); }),
        "pipeline layers: the tied parameters block0.0.weight and block1.0.weight are on several workers: "
        "give CutOptions::seed, so that they begin equal");
  LayerGraph shapes = blocks(2);
  shapes.tie({"block0.0.weight", "block1.0.bias"});
  EXPECT_EQ(message_of([&] { cut(shapes, {.cuts = {1}}); }),
            "pipeline layers: the tied parameters block0.0.weight and block1.0.bias have the shapes [6, 6] "
            "and [6], expected equal shapes");
  LayerGraph unknown = blocks(2);
  unknown.tie({"block0.0.weight", "block1.2.weight"});
  EXPECT_EQ(message_of([&] { cut(unknown, {.cuts = {1}}); }),
            "stage 1 has no parameter block1.2.weight, expected a name of its module's parameters");
  const auto steps = schedule::pipedream({.ranks = 2, .microbatches = 2});
  const StageGraph graph = cut(model, {.cuts = {1}});
  EXPECT_EQ(
      message_of([&] {
        LocalPipeline(graph, steps, {.loss = squares, .optimizer = torch::optim::SGDOptions(0.1)});
      }),
      "LocalPipeline: the tied parameter block0.0.weight of stage 0: expected one rank for the stage, and "
      "no optimizer in the options");
}

}  // namespace
}  // namespace weft::pipeline::ties_test
