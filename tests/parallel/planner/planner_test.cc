#include <weft/parallel/planner/planner.h>

#include <weft/parallel/partition/balance.h>
#include <weft/parallel/partition/plan.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/simulate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "tests/support/errors.h"

namespace weft::planner::testing {
namespace planner_test {

using test::kind_of;
using test::message_of;

Model random_model(unsigned seed, std::size_t layers) {
  std::mt19937 random(seed);
  const auto figure = [&](int least, int most) {
    return static_cast<double>(least + static_cast<int>(random() % static_cast<unsigned>(most - least)));
  };
  std::vector<partition::Layer> made;
  for (std::size_t i = 0; i < layers; ++i)
    made.push_back({"layer" + std::to_string(i), "", figure(5, 60), figure(10, 120), figure(1, 40) * 1e6,
                    figure(0, 90) * 1e6});
  Model model{.profile = partition::sequence(std::move(made))};
  for (const partition::Layer& layer : model.profile.layers) {
    model.kept_bytes.push_back(layer.activation_bytes * figure(1, 6));
    model.split.push_back(random() % 3 > 0);
  }
  return model;
}

double total_seconds(const Model& model) {
  double sum = 0;
  for (const partition::Layer& layer : model.profile.layers)
    sum += (layer.forward_ms + layer.backward_ms) / 1000;
  return sum;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double parameters(const Model& model) {
  double sum = 0;
  for (const partition::Layer& layer : model.profile.layers) sum += layer.parameter_bytes;
  return sum;
}

int chunks_of(std::string_view schedule) {
  const std::string_view chunked[] = {"zb-v",        "v-half",         "v-min",     "dualpipe-v",
                                      "interleaved", "interleaved-zb", "looped-bfs"};
  return std::find(std::begin(chunked), std::end(chunked), schedule) == std::end(chunked) ? 1 : 2;
}

// All choices of plan(), without its pruning.
std::vector<Choice> every_choice(const Machine& machine, const Options& options) {
  std::vector<Choice> all;
  const int ranks = machine.ranks();
  for (int data = 1; data <= ranks; ++data)
    for (int pipeline = 1; data * pipeline <= ranks; ++pipeline)
      for (int tensor = 1; data * pipeline * tensor <= ranks; ++tensor)
        for (const Order order : {Order::pipeline_inside, Order::data_inside})
          for (const std::string_view schedule : schedules())
            for (int chunks = 1; chunks <= options.max_chunks; chunks *= 2)
              for (const int microbatch : options.microbatches)
                for (const Balance balance : {Balance::time, Balance::memory}) {
                  const bool looped =
                      schedule == "interleaved" || schedule == "looped-bfs" || schedule == "interleaved-zb";
                  if (looped && chunks == 1) continue;
                  if (pipeline == 1 && schedule != "1f1b") continue;
                  all.push_back(
                      {{data, pipeline, tensor, order}, std::string(schedule), chunks, microbatch, balance});
                }
  return all;
}

TEST(Planner, TheTimeOfOneRankIsTheSumOfTheProfile) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Model model = random_model(seed, 1 + seed % 7);
    const Plans found = plan(model, {}, {.global_batch = 6, .optimizer_bytes = 3});
    ASSERT_EQ(found.plans.size(), 1U);
    const Plan& best = found.plans.front();
    EXPECT_EQ(best.microbatches, 6);
    EXPECT_NEAR(best.step_seconds, 6 * total_seconds(model), 1e-9);
    EXPECT_NEAR(best.bubble, 0, 1e-12);
    EXPECT_EQ(best.reduction_seconds, 0);
    EXPECT_EQ(best.fullest().parameters, parameters(model));
    EXPECT_EQ(best.fullest().gradients, parameters(model));
    EXPECT_EQ(best.fullest().optimizer, 3 * parameters(model));
    EXPECT_NEAR(best.fullest().activations, sum_of(model.kept_bytes), 1);
    EXPECT_TRUE(best.first_layers.empty());
    EXPECT_TRUE(found.refused.empty());
  }
}

TEST(Planner, TheTimeOfAPipelineIsThatOfItsSimulation) {
  const Machine machine{.ranks_per_host = 4, .bytes_per_second = 1e9, .latency = 1e-3};
  for (unsigned seed = 0; seed < 5; ++seed)
    for (const std::string_view name : schedules()) {
      const Model model = random_model(seed, 13);
      const int chunks = chunks_of(name);
      schedule::Schedule made = schedule::generate(name, {.ranks = 4, .microbatches = 9, .chunks = chunks});
      const auto cut = partition::balance_exactly(model.profile, static_cast<std::size_t>(4 * chunks));
      schedule::Costs costs = partition::costs_of(cut);
      for (std::size_t stage = 0; stage < cut.stages.size(); ++stage) {
        schedule::StageCost& cost = costs.stages[stage];
        cost.weight_gradient = cost.input_gradient = cost.input_gradient / 2;
        cost.activation = 0;
        for (const std::size_t layer : cut.stages[stage].layers) cost.activation += model.kept_bytes[layer];
        cost.kept_for_weight_gradient = cost.activation;
        if (stage + 1 == cut.stages.size()) continue;
        const int from = made.placement[stage].front(), to = made.placement[stage + 1].front();
        const double seconds = 1e-3 + cut.stages[stage].sent_bytes / 1e9;
        costs.links[{from, to}] = std::max(costs.links[{from, to}], seconds);
        costs.links[{to, from}] = std::max(costs.links[{to, from}], seconds);
      }
      const schedule::Prediction expected = schedule::predict(made, costs);
      const Plan found = predict(model, machine, {.global_batch = 9},
                                 {.grid = {.pipeline = 4}, .schedule = std::string(name), .chunks = chunks});
      EXPECT_NEAR(found.step_seconds, expected.time, 1e-9) << name;
      EXPECT_EQ(found.step_seconds, found.pipeline_seconds);
      EXPECT_NEAR(found.bubble, 1 - sum_of(expected.busy) / (4 * expected.time), 1e-9) << name;
      ASSERT_EQ(found.memory.size(), 4U);
      for (std::size_t rank = 0; rank < 4; ++rank)
        EXPECT_NEAR(found.memory[rank].activations, expected.peak_activations[rank], 1) << name;
      EXPECT_EQ(found.first_layers.size(), cut.stages.size() - 1);
      EXPECT_EQ(found.first_layers.front(), model.profile.layers[cut.stages[1].layers.front()].name);
    }
}

TEST(Planner, ManyMicrobatchesAreExtendedFromFewer) {
  const Machine machine{.ranks_per_host = 4};
  for (unsigned seed = 0; seed < 3; ++seed)
    for (const std::string_view name : schedules()) {
      const Model model = random_model(seed, 16);
      const auto plan_of = [&](int microbatches) {
        return predict(model, machine, {.global_batch = microbatches},
                       {.grid = {.pipeline = 4}, .schedule = std::string(name), .chunks = chunks_of(name)});
      };
      // 505 micro-batches are simulated, 4,501 are not. A round more takes as long as the one before.
      const Plan whole = plan_of(501), next = plan_of(505), extended = plan_of(501 + 4 * 1000);
      const double period = next.step_seconds - whole.step_seconds;
      EXPECT_NEAR(extended.step_seconds, whole.step_seconds + 1000 * period, 1e-6 * extended.step_seconds)
          << name;
      const double growth = next.fullest().activations - whole.fullest().activations;
      EXPECT_NEAR(extended.fullest().activations, whole.fullest().activations + 1000 * growth, 1e3) << name;
      EXPECT_GE(extended.bubble, 0);
      EXPECT_LT(extended.bubble, 1);
    }
}

TEST(Planner, FindsTheOptimumOfAnExhaustiveSearch) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    Model model = random_model(seed, 3 + seed % 6);
    if (seed % 3 == 0) model.split_units = 2;
    const Machine machine{.hosts = 2,
                          .ranks_per_host = 2,
                          .memory_bytes = seed % 2 == 0 ? 1e9 : 4e8,
                          .bytes_per_second = 2e9,
                          .host_bytes_per_second = 3e8};
    Options options{.global_batch = 12, .microbatches = {1, 2}, .plans = 3};
    std::map<std::tuple<int, int, int>, double> fastest;  // by factorization
    std::vector<double> all;
    for (const Choice& choice : every_choice(machine, options)) {
      Plan each;
      try {
        each = predict(model, machine, options, choice);
      } catch (const rpc::Error&) {
        continue;
      }
      if (each.fullest().total() > machine.memory_bytes) continue;
      all.push_back(each.step_seconds);
      const auto [place, added] = fastest.try_emplace(
          {choice.grid.data, choice.grid.pipeline, choice.grid.tensor}, each.step_seconds);
      if (!added) place->second = std::min(place->second, each.step_seconds);
    }
    std::vector<double> of_factorizations;
    for (const auto& [grid, seconds] : fastest) of_factorizations.push_back(seconds);
    std::sort(of_factorizations.begin(), of_factorizations.end());
    std::sort(all.begin(), all.end());

    const Plans found = plan(model, machine, options);
    ASSERT_EQ(found.plans.size(), std::min<std::size_t>(3, of_factorizations.size())) << seed;
    for (std::size_t i = 0; i < found.plans.size(); ++i) {
      const Plan& each = found.plans[i];
      EXPECT_NEAR(each.step_seconds, of_factorizations[i], 1e-6 * of_factorizations[i]) << seed;
      EXPECT_LE(each.fullest().total(), machine.memory_bytes);
      EXPECT_NEAR(each.step_seconds, predict(model, machine, options, each.choice).step_seconds, 1e-12);
    }
    for (const Refusal& each : found.refused)
      EXPECT_FALSE(fastest.contains({each.grid.data, each.grid.pipeline, each.grid.tensor})) << seed;

    options.every_schedule = true;
    const Plans every = plan(model, machine, options);
    ASSERT_EQ(every.plans.size(), std::min<std::size_t>(3, all.size())) << seed;
    for (std::size_t i = 0; i < every.plans.size(); ++i)
      EXPECT_GE(every.plans[i].step_seconds, all.front() * (1 - 1e-6)) << seed;
    if (!all.empty()) {
      EXPECT_NEAR(every.plans.front().step_seconds, all.front(), 1e-6 * all.front());
    }
  }
}

TEST(Planner, MoreMemoryNeverMakesTheBestPlanSlower) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Model model = random_model(seed, 6 + seed % 5);
    double before = std::numeric_limits<double>::infinity();
    std::size_t plans = 0;
    for (double memory = 5e7; memory < 1e11; memory *= 2.5) {
      const Plans found =
          plan(model, {.hosts = 2, .ranks_per_host = 4, .memory_bytes = memory, .host_bytes_per_second = 5e8},
               {.global_batch = 32});
      EXPECT_GE(found.plans.size(), plans);
      plans = found.plans.size();
      if (plans == 0) continue;
      EXPECT_LE(found.plans.front().step_seconds, before * (1 + 1e-6)) << seed << ' ' << memory;
      EXPECT_LE(found.plans.front().fullest().total(), memory);
      before = found.plans.front().step_seconds;
    }
    EXPECT_EQ(plans, 5U);
  }
}

// One layer: 1 s forward, 2 s backward, 100 MB of parameters.
Model one_layer() { return {.profile = partition::sequence({{"layer", "", 1000, 2000, 1e6, 100e6}})}; }

TEST(Planner, BackwardHidesAllBucketsExceptTheLastOne) {
  const Machine machine{.ranks_per_host = 2, .bytes_per_second = 1e9, .latency = 0};
  const auto reduction = [&](double bytes_per_second) {
    Machine each = machine;
    each.bytes_per_second = bytes_per_second;
    const Plan found = predict(one_layer(), each, {.global_batch = 4, .bucket_bytes = 25e6},
                               {.grid = {.data = 2}, .schedule = "1f1b"});
    EXPECT_EQ(found.microbatches, 2);
    EXPECT_NEAR(found.pipeline_seconds, 6, 1e-9);
    EXPECT_NEAR(found.step_seconds, found.pipeline_seconds + found.reduction_seconds, 1e-12);
    return found.reduction_seconds;
  };
  EXPECT_NEAR(reduction(1e9), 0.025, 1e-9);   // 25 MB over 1 GB/s
  EXPECT_NEAR(reduction(1e7), 10 - 2, 1e-9);  // 100 MB over 10 MB/s, less the last backward
  EXPECT_NEAR(reduction(50e6), 0.5, 1e-9);    // 2 s: as long as that backward, and the last bucket
}

// The second stage has its gradients after 5 s and reduces them for 4 s. The first stage has them after 8 s
// and reduces them for 1 s.
TEST(Planner, AStageIsReducedWhileOtherRanksCompute) {
  Model model{.profile = partition::sequence({{"a", "", 1000, 3000, 0, 1e9}, {"b", "", 1000, 3000, 0, 4e9}})};
  const Machine machine{.ranks_per_host = 4, .bytes_per_second = 1e9, .latency = 0};
  const Choice choice{.grid = {.data = 2, .pipeline = 2}, .schedule = "1f1b"};
  Plan found = predict(model, machine, {.global_batch = 2}, choice);
  EXPECT_NEAR(found.pipeline_seconds, 8, 1e-9);
  EXPECT_NEAR(found.step_seconds, 9, 1e-9);
  model.profile.layers[1].parameter_bytes = 6e9;
  found = predict(model, machine, {.global_batch = 2}, choice);
  EXPECT_NEAR(found.step_seconds, 11, 1e-9);
}

TEST(Planner, ReportsWhyAFactorizationIsImpossible) {
  Model model = random_model(1, 3);
  model.split.clear();
  const Machine machine{.ranks_per_host = 4};
  const auto why = [&](const Options& options, int data, int pipeline, int tensor) {
    for (const Refusal& each : plan(model, machine, options).refused)
      if (each.grid == Grid{data, pipeline, tensor}) return each.why;
    return std::string("possible");
  };
  EXPECT_EQ(why({}, 1, 1, 4), "no layer is split over tensor ranks");
  EXPECT_EQ(why({}, 1, 4, 1), "3 layers do not divide into 4 stages");
  EXPECT_EQ(why({.global_batch = 6}, 4, 1, 1), "6 samples do not divide into micro-batches of 1 for data 4");
  EXPECT_EQ(why({.global_batch = 6}, 2, 2, 1), "possible");
  EXPECT_EQ(why({.schedules = {"interleaved"}, .max_chunks = 1}, 2, 2, 1),
            "no schedule has at most 1 stages on each rank");
  model.split.assign(3, true);
  model.split_units = 6;
  EXPECT_EQ(why({}, 1, 1, 4), "the 6 units of a split layer do not divide over 4 tensor ranks");
  EXPECT_EQ(why({}, 2, 1, 2), "possible");
  const auto odd = plan(model, {.hosts = 2, .ranks_per_host = 3}).refused;
  EXPECT_TRUE(std::any_of(odd.begin(), odd.end(), [](const Refusal& each) {
    return each.why == "hosts of 3 ranks do not divide into tensor groups of 2";
  }));
}

TEST(Planner, ReportsHowMuchMemoryIsMissing) {
  const Plans found = plan(one_layer(), {.ranks_per_host = 2, .memory_bytes = 300e6});
  EXPECT_TRUE(found.plans.empty());
  ASSERT_EQ(found.refused.size(), 3U);
  const Refusal& data = found.refused.back();
  EXPECT_EQ(data.grid, (Grid{.data = 2}));
  EXPECT_EQ(data.why, "memory");
  EXPECT_EQ(data.memory->total(), 400e6);  // without activations, which were not simulated
  EXPECT_EQ(found.simulated, 0U);
  const Plans nearly = plan(one_layer(), {.ranks_per_host = 2, .memory_bytes = 400.5e6});
  EXPECT_EQ(nearly.refused.back().memory->activations, 1e6);
  EXPECT_EQ(plan(one_layer(), {.ranks_per_host = 2, .memory_bytes = 401e6}).plans.size(), 1U);
}

TEST(Planner, StagesOfEqualMemoryMayFitIfThoseOfEqualTimeDoNot) {
  // Two fast layers with many parameters, and four slow ones with few.
  std::vector<partition::Layer> layers(6, {"", "", 100, 200, 0, 1e6});
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].name = "layer" + std::to_string(i);
  for (const std::size_t i : {0U, 1U}) layers[i] = {layers[i].name, "", 1, 2, 0, 1e9};
  const Model model{.profile = partition::sequence(layers)};
  const Options options{.schedules = {"1f1b"}, .optimizer_bytes = 0, .data = 1};
  EXPECT_EQ(plan(model, {.ranks_per_host = 2, .memory_bytes = 5e9}, options).plans[0].choice.balance,
            Balance::time);
  const Plans tight = plan(model, {.ranks_per_host = 2, .memory_bytes = 3e9}, options);
  ASSERT_EQ(tight.plans.size(), 1U);
  EXPECT_EQ(tight.plans[0].choice.balance, Balance::memory);
  EXPECT_EQ(tight.plans[0].first_layers, std::vector<std::string>{"layer1"});
}

TEST(Planner, FollowsSkipConnectionsAndIgnoresInputs) {
  Model model{.profile = {.layers = {{"x", "Input0", 0, 0, 1e9},
                                     {"a", "", 1000, 1000, 1e6},
                                     {"b", "", 1000, 1000, 1e6},
                                     {"c", "", 1000, 1000, 1e6},
                                     {"d", "", 1000, 1000, 1e6}},
                          .edges = {{0, 1}, {0, 4}, {1, 2}, {2, 3}, {3, 4}, {1, 4}}}};
  const Machine machine{.ranks_per_host = 4, .bytes_per_second = 1e6, .latency = 0};
  const Choice choice{.grid = {.pipeline = 4}, .schedule = "1f1b"};
  Plan found = predict(model, machine, {.global_batch = 1}, choice);
  EXPECT_EQ(found.first_layers, (std::vector<std::string>{"b", "c", "d"}));
  EXPECT_NEAR(found.step_seconds, 8 + 6, 1e-9);  // a message of 1 s between any two, there and back
  model.profile.layers[1].activation_bytes = 10e6;
  found = predict(model, machine, {.global_batch = 1}, choice);
  EXPECT_NEAR(found.step_seconds, 8 + 2 * (10 + 1 + 1), 1e-9);
}

TEST(Planner, ASplitBackwardMayCostMore) {
  const Model model = random_model(3, 8);
  const Machine machine{.ranks_per_host = 4};
  const auto seconds = [&](const char* name, double factor) {
    return predict(model, machine, {.global_batch = 8, .split_backward = factor},
                   {.grid = {.pipeline = 4}, .schedule = name})
        .step_seconds;
  };
  EXPECT_EQ(seconds("1f1b", 1.5), seconds("1f1b", 1));
  EXPECT_GT(seconds("zb-h1", 1.5), seconds("zb-h1", 1));
  EXPECT_LT(seconds("zb-h1", 1), seconds("1f1b", 1));
}

TEST(Planner, RanksShareTheCoresOfAHost) {
  const Model model = random_model(4, 8);
  const auto predicted = [&](const Grid& grid, int cores) {
    return predict(model, {.ranks_per_host = 4, .cores_per_host = cores}, {.global_batch = 8},
                   {.grid = grid, .schedule = "1f1b"});
  };
  const double work = 8 * total_seconds(model);  // for all samples
  const Grid data{.data = 4}, pipeline{.pipeline = 4};
  EXPECT_NEAR(predicted(data, 1).pipeline_seconds, work, 1e-9);
  EXPECT_NEAR(predicted(data, 2).pipeline_seconds, work / 2, 1e-9);
  EXPECT_EQ(predicted(data, 4).step_seconds, predicted(data, 0).step_seconds);
  // One core is never idle. With a core for each rank, the bubble limits the speed.
  EXPECT_NEAR(predicted(pipeline, 1).pipeline_seconds, work, 1e-9);
  EXPECT_EQ(predicted(pipeline, 4).step_seconds, predicted(pipeline, 0).step_seconds);
  EXPECT_GT(predicted(pipeline, 4).pipeline_seconds, work / 4);
}

TEST(Planner, UsesTheRequestedSizes) {
  const Model model = random_model(2, 9);
  const Machine machine{.ranks_per_host = 8};
  const Plans found =
      plan(model, machine, {.schedules = {"gpipe"}, .pipeline = 4, .plans = 100, .every_schedule = true});
  EXPECT_FALSE(found.plans.empty());
  for (const Plan& each : found.plans) {
    EXPECT_EQ(each.choice.grid.pipeline, 4);
    EXPECT_EQ(each.choice.schedule, "gpipe");
  }
  EXPECT_EQ(found.global_batch, 4 * 8);
}

TEST(Planner, RefusesWrongArguments) {
  const Model model = one_layer();
  const auto refuses = [&](const std::string& text, const Model& given, const Machine& machine,
                           const Options& options) {
    const auto call = [&] { return plan(given, machine, options); };
    EXPECT_EQ(kind_of(call), rpc::ErrorKind::invalid_argument);
    EXPECT_NE(message_of(call).find(text), std::string::npos) << message_of(call);
  };
  refuses("it has no layers", {}, {}, {});
  refuses("inputs alone", {.profile = partition::sequence({{"x", "Input"}})}, {}, {});
  refuses("figures of 2 layers, expected one for each of 1",
          {.profile = model.profile, .split = {true, true}}, {}, {});
  refuses("kept size of a layer", {.profile = model.profile, .kept_bytes = {-1}}, {}, {});
  refuses("micro-batch of the profile is 0", {.profile = model.profile, .microbatch = 0}, {}, {});
  refuses("the number of hosts is 0, expected 1 to", model, {.hosts = 0}, {});
  refuses("the number of ranks of a host", model, {.hosts = 1000, .ranks_per_host = 10'000}, {});
  refuses("the number of cores of a host is -1", model, {.cores_per_host = -1}, {});
  refuses("the memory of a rank", model, {.memory_bytes = 0}, {});
  refuses("the bandwidth of a host is 0", model, {.host_bytes_per_second = 0}, {});
  refuses("the latency within a host", model, {.latency = -1}, {});
  refuses("a micro-batch is 0", model, {}, {.microbatches = {0}});
  refuses("unknown schedule 'pipedream', expected one of 1f1b, gpipe", model, {},
          {.schedules = {"pipedream"}});
  refuses("the time of a split backward is 0", model, {}, {.split_backward = 0});
  refuses("data 3, pipeline any and tensor any, expected sizes whose product can be the machine's 4 ranks",
          model, {.ranks_per_host = 4}, {.data = 3});
  refuses("0 plans were requested", model, {}, {.plans = 0});
  const auto wrong = [&] { return predict(model, {}, {}, {.grid = {.data = 2}, .schedule = "1f1b"}); };
  EXPECT_EQ(message_of(wrong),
            "plan: data 2, pipeline 1 and tensor 1, expected numbers whose product is the machine's 1 ranks");
  const auto chunks = [&] { return predict(model, {}, {}, {.schedule = "zb-v", .chunks = 3}); };
  EXPECT_EQ(message_of(chunks), "plan: zb-v has 2 stages on each rank, not 3");
}

}  // namespace planner_test
}  // namespace weft::planner::testing
