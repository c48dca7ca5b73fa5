#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/tensor_parallel/dropout.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/training/broadcast_state.h>

#include <latch>
#include <sstream>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::group_pipeline_test {
namespace {

using namespace testing;

class GroupSchedules : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Flush, GroupSchedules, ::testing::ValuesIn(testing::schedules_with_a_flush()),
                         testing::name_of_test);

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
    std::vector<double> losses;
    torch::optim::SGD own(one.parameters(), 0.1);
    if (rows < 6) one.train(false);  // a batch norm refuses one row
    for (int step = 0; step < 2; ++step) {
      const at::Tensor x = numbers({rows, 6}, 10 + step), y = numbers({rows, 6}, 20 + step);
      losses.push_back(step_in_parts(one, own, x, y, microbatches));
    }
    one.train(false);
    const at::Tensor outputs = one[0].forward({numbers({rows, 6}, 30)})[0];
    const Named expected = named_parameters_of(one);

    on_ranks(ranks, backend, [&, ranks = ranks, rows = rows](const Group& group) {
      const StageGraph graph = stages_on(group.rank(), tied_blocks(count), computations, 1);
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
      expect_parameters(graph, expected);
      graph.train(false);
      const Values got = pipeline.evaluate({numbers({rows, 6}, 30)});
      EXPECT_EQ(got.size(), graph.is_here(count - 1) ? 1U : 0U);
      for (const at::Tensor& each : got) EXPECT_TRUE(at::allclose(each, outputs, 1e-10, 1e-10));
    });
  }
}

// Three stages on rank 0 and one on rank 1. In the schedule, messages are far from their computations.
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
  const Named expected = named_parameters_of(one);
  on_ranks(2, [&](const Group& group) {
    const StageGraph graph = stages_on(group.rank(), blocks(4), computations);
    graph.train(false);
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({x}, {y});
    for (int stage = 0; stage < 4; ++stage) {
      if (!graph.is_here(stage)) continue;
      for (const auto& each : graph[stage].module->named_parameters())
        EXPECT_TRUE(at::allclose(each.value().grad(), expected.at(each.key()).grad(), 1e-10, 1e-10))
            << each.key();
    }
  });
}

TEST(GroupPipeline, AStageThatThrowsFailsTheStepOnAllRanks) {
  const auto computations = schedule::one_forward_one_backward({.ranks = 3, .microbatches = 4});
  const auto errors = errors_on_ranks(3, [&](const Group& group) {
    const StageGraph graph = stages_on(group.rank(), blocks(3, throws_in(1)), computations);
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({numbers({8, 6}, 1)}, {numbers({8, 6}, 2)});
  });
  expect_errors(errors, "stage 1, micro-batch 0, F: out of order");
}

// Two stages, each split over two ranks, with dropout of equal and of split activations.
TEST(GroupPipeline, RecomputesTensorParallelStagesWithDropout) {
  const auto run = [](schedule::Recompute mode) {
    const auto computations = schedule::add_recomputation(
        schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3}), mode);
    std::vector<std::vector<at::Tensor>> all(4);
    on_ranks(4, Backend::memory, [&](const Group& world) {
      const Group tensor = world.split(world.rank() % 2).get().value(),
                  row = world.split(world.rank() / 2).get().value();
      LayerGraph model;
      for (int stage = 0; stage < 2; ++stage) {
        const auto build = [&, stage] {
          using namespace tensor_parallel;
          const auto seed = static_cast<std::uint64_t>(stage);
          const auto drawn = [&](std::uint64_t n) { return at::detail::createCPUGenerator(10 * seed + n); };
          const auto module = std::make_shared<torch::nn::Module>();
          auto up = module->register_module(
              "up", ColumnParallelLinear(tensor, 6, 8, ColumnParallelOptions{.generator = drawn(1)}));
          auto down = module->register_module(
              "down", RowParallelLinear(tensor, 8, 6, RowParallelOptions{.generator = drawn(2)}));
          module->to(at::kDouble);
          const auto generators = std::make_shared<DropoutGenerators>(tensor, 7 + seed);
          const auto forward = [=](const Values& x) mutable {
            const at::Tensor hidden = dropout(up->forward(x[0]).tanh(), 0.3, generators->split());
            return Values{x[0] + dropout(down->forward(hidden), 0.3, generators->whole())};
          };
          return BuiltLayer{module, forward, generators->both()};
        };
        model.add({"block" + std::to_string(stage), build, {stage == 0 ? step_input(0) : Source{0}}});
      }
      const StageGraph graph = stages_on(row.rank(), model, computations);
      GroupPipeline pipeline(row, graph, computations, {.loss = squares});
      auto& own = all[static_cast<std::size_t>(world.rank())];
      for (int step = 0; step < 2; ++step)
        own.push_back(pipeline.step({numbers({9, 6}, 1)}, {numbers({9, 6}, 2)}).loss);
      for (const at::Tensor& parameter : graph.parameters()) own.push_back(parameter.grad());
    });
    return all;
  };
  const auto kept = run(schedule::Recompute::never), recomputed = run(schedule::Recompute::always);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(kept[rank].size(), recomputed[rank].size());
    for (std::size_t i = 0; i < kept[rank].size(); ++i)
      EXPECT_TRUE(at::allclose(kept[rank][i], recomputed[rank][i], 1e-12, 1e-12)) << rank << ": " << i;
  }
}

// Two stages in two pipelines. One pipeline is lost during a step. The other one repeats the step and
// continues alone, in place. Then a new pipeline joins, whose modules had other values.
TEST(GroupPipeline, ContinuesWithFewerAndMorePipelines) {
  const auto computations = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3});
  const auto x = [](int step) { return numbers({12, 6}, 10 + step); };
  const auto y = [](int step) { return numbers({12, 6}, 20 + step); };
  const StageGraph one = cut(blocks(2), {});
  one.train(false);
  torch::optim::SGD whole(one.parameters(), momentum);
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) {
    whole.zero_grad();
    const at::Tensor loss = squares({one[0].forward({x(step)})[0]}, {y(step)});
    losses.push_back(loss.item<double>());
    loss.backward();
    whole.step();
  }
  const Named expected = named_parameters_of(one);

  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded ? "sharded" : "whole");
    std::vector<std::vector<double>> measured(4, std::vector<double>(6));
    on_ranks(4, Backend::memory, [&](const Group& world) {
      const int which = world.rank() / 2;
      const auto row = [&] { return world.split(which).get().value(); };
      const auto column = [&] { return world.split(world.rank() % 2).get().value(); };
      const Group pipeline_of_two = row(), data_of_two = column(), again = row(),
                  alone = world.split(world.rank()).get().value(), grown = row(), data_grown = column();
      GroupPipelineOptions options{.loss = squares, .data_parallel = data_of_two};
      if (sharded) options.sharded = sharded::ShardOptions{};
      struct Trainer {
        StageGraph graph;
        std::optional<GroupPipeline> pipeline;
        std::optional<sharded::FullyShardedOptimizer> parts;
        std::optional<torch::optim::SGD> optimizer;
      } trainer;
      const auto build = [&](const Group& group, std::uint64_t seed) {
        trainer.parts.reset(), trainer.optimizer.reset(), trainer.pipeline.reset();
        trainer.graph = stages_on(group.rank(), blocks(2), computations, seed);
        trainer.graph.train(false);
        trainer.pipeline.emplace(group, trainer.graph, computations, options);
        if (sharded) {
          trainer.parts.emplace(trainer.pipeline->sharded(), momentum);
        } else {
          trainer.optimizer.emplace(trainer.graph.parameters(), momentum);
        }
      };
      const auto take_step = [&](int step, int pipelines) {
        sharded ? trainer.parts->zero_grad() : trainer.optimizer->zero_grad();
        const auto part = [&](const at::Tensor& all) { return at::tensor_split(all, pipelines)[which]; };
        const double loss = trainer.pipeline->step({part(x(step))}, {part(y(step))}).loss.item<double>();
        measured[static_cast<std::size_t>(world.rank())][static_cast<std::size_t>(step)] = loss;
        sharded ? trainer.parts->step() : (void)trainer.optimizer->step();
      };
      build(pipeline_of_two, 1);
      for (int step = 0; step < 2; ++step) take_step(step, 2);
      // Combines the parts of the ranks of a column, as an elastic state does.
      std::map<std::string, at::Tensor> kept;
      const auto save = [&](const Group& data) {
        if (!sharded) return;
        sharded::SlicedState own;
        trainer.pipeline->sharded().add_to(own);
        trainer.parts->add_to(own);
        std::map<std::string, std::pair<std::int64_t, at::Tensor>> slices;
        for (const auto& [name, tensor] : own.tensors)
          slices[name] = {tensor.begin, tensor.values.detach().clone()};
        kept.clear();
        for (const auto& rank : data.all_gather_object(slices).get())  // parts in the order of the ranks
          for (const auto& [name, slice] : rank)
            kept[name] = kept.contains(name) ? at::cat({kept[name], slice.second}) : slice.second;
      };
      const auto load = [&](const Group& data) {
        if (!sharded) return;
        kept = data.broadcast_object(kept, 0).get();
        trainer.parts->set_group();
        sharded::SlicedState own;
        trainer.pipeline->sharded().add_to(own);
        std::vector<std::string> names;
        for (const auto& [name, tensor] : kept) names.push_back(name);
        trainer.parts->add_wanted_to(own, names);
        for (auto& [name, tensor] : own.tensors)
          tensor.values.copy_(kept.at(name).narrow(0, tensor.begin, tensor.values.numel()));
        own.notes["optimizer/name"] = "SGD";
        trainer.parts->take_from(own);
      };
      save(data_of_two);
      if (which == 1) {  // dies in step 2
        sharded ? trainer.pipeline->sharded().abort("a worker has died")
                : data_of_two.abort("a worker has died");
      } else {
        EXPECT_TRUE(error_of([&] { take_step(2, 2); }));
        trainer.pipeline->set_groups(again, alone);
        load(alone);
        for (int step = 2; step < 4; ++step) take_step(step, 1);
        save(alone);
      }
      if (which == 0) {
        trainer.pipeline->set_groups(grown, data_grown);
      } else if (sharded) {
        options.data_parallel = alone;
        build(again, 7);
        trainer.pipeline->set_groups(grown, data_grown);
      } else {
        options.data_parallel = data_grown;
        build(grown, 7);
      }
      if (!sharded) {  // the program keeps the state of its optimizer
        training::broadcast_optimizer_state(data_grown, *trainer.optimizer, 0);
      }
      load(data_grown);
      for (int step = 4; step < 6; ++step) take_step(step, 2);
      if (sharded) {
        for (const sharded::ParameterSlice& slice : trainer.pipeline->sharded().slices())
          EXPECT_TRUE(at::allclose(slice.leaf.tensor,
                                   expected.at(slice.parameter).flatten().slice(0, slice.begin, slice.end),
                                   1e-10, 1e-10))
              << slice.leaf.name;
      } else {
        expect_parameters(trainer.graph, expected);
      }
    });
    for (std::size_t step = 0; step < 6; ++step) {
      const bool alone = step == 2 || step == 3;
      const double loss = alone ? measured[0][step] : (measured[0][step] + measured[2][step]) / 2;
      EXPECT_NEAR(loss, losses[step], 1e-10) << "step " << step;
    }
  }
}

// Two pipelines of one stage against one process, with an optimizer of the program and one in the options.
// The program unfreezes the first layer, loads other weights, and freezes the bias of the last layer.
TEST(GroupPipeline, FollowsAProgramThatUnfreezesLoadsAndFreezes) {
  const auto make = [] {
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Tanh(), torch::nn::Linear(6, 6));
    model->to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.copy_(numbers(parameter.sizes(), 3));
    for (at::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(false);
    return model;
  };
  const auto change = [&](torch::nn::Sequential& model, int step) {
    if (step == 2)
      for (at::Tensor& parameter : model[0]->parameters()) parameter.requires_grad_(true);
    if (step == 4) {
      torch::nn::Sequential other = make();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : other->parameters()) parameter.mul_(0.5);
      std::stringstream file;
      torch::save(other, file);
      torch::load(model, file);
    }
    if (step == 5) model[2]->named_parameters()["bias"].requires_grad_(false);
  };
  const auto x = [](int step) { return numbers({8, 6}, static_cast<std::uint64_t>(10 + step)); };
  const auto y = [](int step) { return numbers({8, 6}, static_cast<std::uint64_t>(20 + step)); };
  torch::nn::Sequential whole = make();
  torch::optim::SGD own(whole->parameters(), momentum);
  std::vector<std::vector<at::Tensor>> expected;  // by step
  for (int step = 0; step < 7; ++step) {
    change(whole, step);
    own.zero_grad();
    squares({whole->forward(x(step))}, {y(step)}).backward();
    own.step();
    auto& values = expected.emplace_back();
    for (const at::Tensor& each : whole->parameters()) values.push_back(each.detach().clone());
  }
  for (const bool is_in_options : {false, true}) {
    SCOPED_TRACE(is_in_options ? "optimizer in the options" : "optimizer of the program");
    on_ranks(2, Backend::memory, [&](const Group& world) {
      const Group alone = world.split(world.rank()).get().value();
      torch::nn::Sequential model = make();
      GroupPipelineOptions options{.loss = squares, .data_parallel = world};
      if (is_in_options) options.optimizer = momentum;
      GroupPipeline pipeline(alone, split(model, {}),
                             schedule::one_forward_one_backward({.ranks = 1, .microbatches = 2}), options);
      torch::optim::SGD optimizer(model->parameters(), momentum);
      for (int step = 0; step < 7; ++step) {
        change(model, step);
        optimizer.zero_grad();
        const auto part = [&](const at::Tensor& all) { return all.narrow(0, 4 * world.rank(), 4); };
        pipeline.step({part(x(step))}, {part(y(step))});
        if (!is_in_options) optimizer.step();
        const auto parameters = model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(at::allclose(parameters[i], expected[static_cast<std::size_t>(step)][i], 1e-10, 1e-10))
              << "step " << step << ", parameter " << i;
      }
    });
  }
}

// Both ranks would reduce as many elements.
TEST(GroupPipeline, UnfreezingDifferentParametersFailsOnAllRanks) {
  const auto errors = errors_on_ranks(2, Backend::memory, [&](const Group& world) {
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    model->to(at::kDouble);
    for (const std::size_t layer : {0, 1})
      for (at::Tensor& parameter : model[layer]->parameters()) parameter.requires_grad_(false);
    GroupPipeline pipeline(world.split(world.rank()).get().value(), split(model, {}),
                           schedule::fill_drain({.ranks = 1, .microbatches = 2}),
                           {.loss = squares, .data_parallel = world});
    pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
    for (at::Tensor& parameter : model[static_cast<std::size_t>(world.rank())]->parameters())
      parameter.requires_grad_(true);
    pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  });
  int causes = 0;  // the other rank may learn of the error first
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    causes += error->kind() == ErrorKind::failed_precondition;
    EXPECT_NE(std::string(error->what()).find("the parameter 0.weight requires grad on some of the ranks"),
              std::string::npos)
        << error->what();
  }
  EXPECT_GE(causes, 1);
}

// The last weight gradient of rank 0 hangs until rank 1 has its error.
TEST(GroupPipeline, AHungLastActionFailsTheStepAfterTheTimeout) {
  std::latch released(1);
  const auto errors = errors_on_ranks(2, Backend::memory, [&](const Group& group) {
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    model->to(at::kDouble);
    int calls = 0;
    if (group.rank() == 0)
      model[0]->named_parameters()["weight"].register_hook([&](const at::Tensor& gradient) {
        if (++calls == 2) released.wait();
        return gradient;
      });
    GroupPipeline pipeline(group, split(model, {1}),
                           schedule::one_forward_one_backward({.ranks = 2, .microbatches = 2}),
                           {.loss = squares, .timeout = std::chrono::seconds(3)});
    const auto error = error_of([&] { pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)}); });
    if (group.rank() == 1) released.count_down();
    if (error) throw *error;
  });
  for (const auto& error : errors) EXPECT_TRUE(error);
  expect_errors({errors[1]}, ErrorKind::deadline_exceeded,
                "not all ranks have completed their actions within 3000 ms");
}

// Two pipelines of two ranks; rank 2 refuses. The groups remain usable.
TEST(GroupPipeline, ARefusalOfOneRankReachesAllRanksAtOnce) {
  const auto computations = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  on_ranks(4, Backend::memory, [&](const Group& world) {
    const Group row = world.split(world.rank() / 2).get().value(),
                column = world.split(world.rank() % 2).get().value();
    const StageGraph graph = stages_on(row.rank(), blocks(2), computations, 1);
    GroupPipelineOptions options{.loss = squares, .data_parallel = column};
    GroupPipelineOptions other = options;
    if (world.rank() == 2) other.loss = nullptr;
    expect_error([&] { GroupPipeline(row, graph, computations, other); },
                 world.rank() == 2 ? ErrorKind::invalid_argument : ErrorKind::failed_precondition,
                 "no loss: give GroupPipelineOptions::loss");
    GroupPipeline(row, graph, computations, options).step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  });
}

// An optimizer does not take parameters that share memory. Only rank 1 has such parameters.
TEST(GroupPipeline, AStageThatCannotBePreparedFailsAllRanks) {
  const auto errors = errors_on_ranks(2, [&](const Group& group) {
    torch::nn::Sequential model(torch::nn::Linear(6, 6), torch::nn::Linear(6, 6));
    model->to(at::kDouble);
    if (group.rank() == 1) {
      auto& last = *model[1]->as<torch::nn::Linear>();
      last.bias.set_data(last.weight.data()[0]);
    }
    GroupPipeline pipeline(group, split(model, {1}), schedule::fill_drain({.ranks = 2, .microbatches = 2}),
                           {.loss = squares, .optimizer = torch::optim::SGDOptions(0.1)});
    pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  });
  for (const auto& error : errors) EXPECT_TRUE(error);
}

TEST(GroupPipeline, RefusesGroupsThatDoNotFit) {
  const auto computations = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 2});
  on_ranks(2, [&](const Group& group) {
    const StageGraph graph = stages_on(group.rank(), blocks(2), computations);
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    const Group alone = group.split(group.rank()).get().value(),
                turned = group.split(0, -group.rank()).get().value();
    EXPECT_EQ(test::kind_of([&] { pipeline.set_groups(alone); }), ErrorKind::invalid_argument);
    EXPECT_EQ(error_of([&] { pipeline.set_groups(turned); })->kind(), ErrorKind::invalid_argument);
    EXPECT_EQ(error_of([&] { pipeline.set_groups(group, alone); })->kind(), ErrorKind::invalid_argument);
    const auto on_rank_0 = group.rank() == 0 ? std::optional(alone) : std::nullopt;
    EXPECT_EQ(error_of([&] { pipeline.set_groups(group, on_rank_0); })->kind(),
              group.rank() == 0 ? ErrorKind::invalid_argument : ErrorKind::failed_precondition);
    pipeline.set_groups(group);
    pipeline.step({numbers({4, 6}, 1)}, {numbers({4, 6}, 2)});
  });
}

TEST(GroupPipeline, RanksHaveTheSameCuts) {
  const auto computations = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  const auto errors = errors_on_ranks(2, [&](const Group& group) {
    const StageGraph graph = cut(blocks(4), {.cuts = {group.rank() == 0 ? 1 : 3}});
    GroupPipeline(group, graph, computations, {.loss = squares});
  });
  expect_errors(errors, ErrorKind::invalid_argument);
}

TEST(GroupPipeline, ARankWithADifferentNumberOfRowsFailsTheStep) {
  const auto computations = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  const auto errors = errors_on_ranks(2, [&](const Group& group) {
    const StageGraph graph = stages_on(group.rank(), blocks(2), computations);
    GroupPipeline pipeline(group, graph, computations, {.loss = squares});
    pipeline.step({numbers({8, 6}, 1)}, {numbers({7, 6}, 2)});
  });
  expect_errors(errors, "target 0 has 7 rows");
}

TEST(GroupPipeline, RefusesInvalidArguments) {
  const auto two = schedule::fill_drain({.ranks = 2, .microbatches = 2});
  Company company(1);
  const Group group = company.groups().at(0);
  const StageGraph graph = cut(blocks(2), {.cuts = {1}});
  EXPECT_EQ(test::message_of([&] { GroupPipeline(group, graph, two, {}); }),
            "GroupPipeline: no loss: give GroupPipelineOptions::loss");
  EXPECT_EQ(test::message_of([&] { GroupPipeline(group, graph, two, {.loss = squares}); }),
            "GroupPipeline: a schedule of 2 ranks, expected one for each of 1 of the group");
  const auto both = schedule::interleaved({.ranks = 1, .microbatches = 2, .chunks = 2});
  const StageGraph half = cut(blocks(2), {.cuts = {1}, .built = std::set<int>{1}});
  EXPECT_EQ(test::message_of([&] { GroupPipeline(group, half, both, {.loss = squares}); }),
            "GroupPipeline: stage 0 of this rank has no module, expected one: see CutOptions::built");
}

}  // namespace
}  // namespace weft::pipeline::group_pipeline_test
