#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::group_pipeline_test {
namespace {

using collectives::Group;
using collectives::testing::Backend;
using collectives::testing::Company;
using rpc::ErrorKind;
using test::error_of;
using testing::blocks;
using testing::numbers;
using testing::on_ranks;
using testing::one_block_each;
using testing::squares;

// The first and the last block have equal weights.
LayerGraph tied_blocks(int count) {
  LayerGraph model = blocks(count);
  if (count > 1) model.tie({"block0.0.weight", "block" + std::to_string(count - 1) + ".0.weight"});
  return model;
}

class GroupSchedules : public ::testing::TestWithParam<std::string> {};
std::vector<std::string> with_a_flush() {
  std::vector<std::string> names;
  for (const auto& generator : schedule::generators())
    if (!generator.name.starts_with("pipedream")) names.emplace_back(generator.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Flush, GroupSchedules, ::testing::ValuesIn(with_a_flush()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(GroupSchedules, TrainLikeTheWholeModel) {
  using schedule::Recompute;
  for (const auto& [ranks, microbatches, rows, backend, recompute] :
       {std::tuple{2, 4, 13, Backend::memory, Recompute::never},
        {3, 2, 7, Backend::messages, Recompute::always},
        {2, 3, 2, Backend::messages, Recompute::except_last}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " micro-batches");
    const auto computations = schedule::add_recomputation(
        schedule::generate(GetParam(), {.ranks = ranks, .microbatches = microbatches}), recompute);
    const int count = computations.stages();
    const StageGraph one = cut(tied_blocks(count), {});
    std::map<std::string, at::Tensor> expected;
    std::vector<double> losses;
    torch::optim::SGD own(one.parameters(), 0.1);
    if (rows < 6) one.train(false);  // a batch norm refuses one row
    for (int step = 0; step < 2; ++step) {
      const at::Tensor x = numbers({rows, 6}, 10 + step), y = numbers({rows, 6}, 20 + step);
      own.zero_grad();
      losses.push_back(0);
      const auto parts = std::min<std::int64_t>(microbatches, rows);
      const auto xs = at::tensor_split(x, parts), ys = at::tensor_split(y, parts);
      for (std::size_t i = 0; i < xs.size(); ++i) {
        const at::Tensor part =
            squares({one[0].forward({xs[i]})[0]}, {ys[i]}) * (static_cast<double>(xs[i].size(0)) / rows);
        part.backward();
        losses.back() += part.item<double>();
      }
      testing::add_ties(one);
      own.step();
    }
    one.train(false);
    const at::Tensor outputs = one[0].forward({numbers({rows, 6}, 30)})[0];
    for (const auto& each : one[0].module->named_parameters()) expected[each.key()] = each.value();

    Company company(ranks, backend);
    const auto errors = on_ranks(company, [&](const Group& group) {
      const StageGraph graph =
          cut(tied_blocks(count),
              {.cuts = one_block_each(count), .built = stages_of(computations, group.rank()), .seed = 1});
      GroupPipeline pipeline(group, graph, computations, {.loss = squares});
      torch::optim::SGD optimizer(graph.parameters(), 0.1);
      if (rows < 6) graph.train(false);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const GroupStep result =
            pipeline.step({numbers({rows, 6}, 10 + step)}, {numbers({rows, 6}, 20 + step)});
        EXPECT_NEAR(result.loss.item<double>(), losses[static_cast<std::size_t>(step)], 1e-10);
        EXPECT_EQ(result.timeline.ranks.size(), static_cast<std::size_t>(ranks));
        optimizer.step();
      }
      for (int stage = 0; stage < count; ++stage) {
        if (!graph.is_here(stage)) continue;
        for (const auto& each : graph[stage].module->named_parameters())
          EXPECT_TRUE(at::allclose(each.value(), expected.at(each.key()), 1e-10, 1e-10)) << each.key();
      }
      graph.train(false);
      const Values got = pipeline.evaluate({numbers({rows, 6}, 30)});
      EXPECT_EQ(got.size(), graph.is_here(count - 1) ? 1U : 0U);
      for (const at::Tensor& each : got) EXPECT_TRUE(at::allclose(each, outputs, 1e-10, 1e-10));
    });
    for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
  }
}

// Three stages on rank 0, one on rank 1, and a schedule of text whose messages are away from their
// computations.
TEST(GroupPipeline, RunsAScheduleByHand) {
  const auto computations = schedule::load(
      "0F0,0F1,0SEND_F0:1,0SEND_F1:1,2RECV_F0:1,2F0,3F0,3B0,2B0,2SEND_B0:1,2RECV_F1:1,2F1,3F1,3B1,2B1,"
      "2SEND_B1:1,0RECV_B0:1,0B0,0RECV_B1:1,0B1\n"
      "1RECV_F0:0,1F0,1RECV_F1:0,1SEND_F0:2,1F1,1SEND_F1:2,1RECV_B0:2,1B0,1SEND_B0:0,1RECV_B1:2,1B1,"
      "1SEND_B1:0\n");
  const at::Tensor x = numbers({8, 6}, 1), y = numbers({8, 6}, 2);
  const StageGraph one = cut(blocks(4), {});
  one.train(false);
  squares({one[0].forward({x})[0]}, {y}).backward();
  std::map<std::string, at::Tensor> expected;
  for (const auto& each : one[0].module->named_parameters()) expected[each.key()] = each.value().grad();
  Company company(2);
  const auto errors = on_ranks(company, [&](const Group& group) {
    const StageGraph graph =
        cut(blocks(4), {.cuts = one_block_each(4), .built = stages_of(computations, group.rank())});
    graph.train(false);
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({x}, {y});
    for (int stage = 0; stage < 4; ++stage) {
      if (!graph.is_here(stage)) continue;
      for (const auto& each : graph[stage].module->named_parameters())
        EXPECT_TRUE(at::allclose(each.value().grad(), expected.at(each.key()), 1e-10, 1e-10)) << each.key();
    }
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(GroupPipeline, AStageThatThrowsEndsTheStepOnAllRanks) {
  const auto computations = schedule::one_forward_one_backward({.ranks = 3, .microbatches = 4});
  Company company(3);
  const auto errors = on_ranks(company, [&](const Group& group) {
    const StageGraph graph =
        cut(blocks(3, 1), {.cuts = {1, 2}, .built = stages_of(computations, group.rank())});
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("stage 1, micro-batch 0, F: out of order"), std::string::npos)
        << error->what();
  }
}

TEST(GroupPipeline, RanksHaveTheSameCuts) {
  const auto computations = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  Company company(2);
  const auto errors = on_ranks(company, [&](const Group& group) {
    const StageGraph graph = cut(blocks(4), {.cuts = {group.rank() == 0 ? 1 : 3}});
    GroupPipeline(group, graph, computations, {.loss = squares});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::invalid_argument);
  }
}

TEST(GroupPipeline, ARankWithOtherRowsEndsTheStep) {
  const auto computations = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  Company company(2);
  const auto errors = on_ranks(company, [&](const Group& group) {
    const StageGraph graph = cut(blocks(2), {.cuts = {1}, .built = stages_of(computations, group.rank())});
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({numbers({8, 6}, 1)}, {numbers({7, 6}, 2)});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("target 0 has 7 rows"), std::string::npos) << error->what();
  }
}

TEST(GroupPipeline, RefusesWhatDoesNotFit) {
  const auto two = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  Company company(1);
  const Group group = company.groups().at(0);
  const auto refused = [&](auto&& f) {
    const auto error = error_of(f);
    return error ? std::string(error->what()) : "not refused";
  };
  const StageGraph graph = cut(blocks(2), {.cuts = {1}});
  EXPECT_EQ(refused([&] { GroupPipeline(group, graph, two, {}); }),
            "GroupPipeline: no loss: give GroupPipelineOptions::loss");
  EXPECT_EQ(refused([&] { GroupPipeline(group, graph, two, {.loss = squares}); }),
            "GroupPipeline: a schedule of 2 ranks, expected one for each of 1 of the group");
  const auto both = schedule::interleaved({.ranks = 1, .microbatches = 2, .chunks = 2});
  const StageGraph half = cut(blocks(2), {.cuts = {1}, .built = std::set<int>{1}});
  EXPECT_EQ(refused([&] { GroupPipeline(group, half, both, {.loss = squares}); }),
            "GroupPipeline: stage 0 of this rank has no module");
}

}  // namespace
}  // namespace weft::pipeline::group_pipeline_test
