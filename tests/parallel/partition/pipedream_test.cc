#include <weft/parallel/partition/pipedream.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "tests/parallel/partition/every_partition.h"
#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace pipedream_test {

using Layers = std::vector<std::vector<std::size_t>>;
using Ranks = std::vector<std::vector<int>>;

Layers layers_of(const Partition& partition) {
  Layers layers;
  for (const Stage& stage : partition.stages) layers.push_back(stage.layers);
  return layers;
}
Ranks ranks_of(const Partition& partition) {
  Ranks ranks;
  for (const Stage& stage : partition.stages) ranks.push_back(stage.ranks);
  return ranks;
}

PipeDreamOptions with(Objective objective) { return {.objective = objective}; }

// Two layers of 6 s and 4 s. The second one has most of the parameters.
Profile two_layers() {
  return sequence({{"a", "", 2000, 4000, 1e9, 0.3e9}, {"b", "", 1000, 3000, 7e9, 2e9}});
}
const std::vector<Level> three_workers{{3, 1e9}};

// --- By hand ---

// One stage of both layers on 3 workers takes (10 + 4 * 2 * 2.3 / 3) / 3 = 5.38. a on 2 workers and b on one
// take (6 + 4 * 1 * 0.3 / 2) / 2 = 3.3 and 4. a on one worker and b on 2 take 6.
TEST(PipeDream, MinimizesTheObjectiveOfTheCode) {
  const Partition found = pipedream(two_layers(), three_workers);
  EXPECT_EQ(layers_of(found), (Layers{{0}, {1}}));
  EXPECT_EQ(ranks_of(found), (Ranks{{0, 1}, {2}}));
  EXPECT_DOUBLE_EQ(found.bottleneck_seconds, 4);
  EXPECT_DOUBLE_EQ(found.total_seconds, 10);
  EXPECT_DOUBLE_EQ(found.speed_up(), 2.5);
  EXPECT_DOUBLE_EQ(found.data_parallel_seconds, (10 + 4 * 2 * 2.3 / 3) / 3);
}

// Both layers on 3 workers take max(10, 2 * 2 * 2.3) / 3 = 3.33. The other partitions take 4 and 6.
TEST(PipeDream, MinimizesTheObjectiveOfThePaper) {
  const Partition found = pipedream(two_layers(), three_workers, with(Objective::pipedream_paper));
  EXPECT_EQ(layers_of(found), (Layers{{0, 1}}));
  EXPECT_EQ(ranks_of(found), (Ranks{{0, 1, 2}}));
  EXPECT_DOUBLE_EQ(found.bottleneck_seconds, 10.0 / 3);
}

TEST(PipeDream, TransfersCountWithACompressionRatio) {
  const auto seconds = [](double ratio, Objective objective = Objective::pipedream_code) {
    PipeDreamOptions options = with(objective);
    options.activation_compression = ratio;
    return pipedream(two_layers(), three_workers, options).bottleneck_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(1), 4);                             // 2 * 1e9 / 1e9 = 2 is below 4
  EXPECT_DOUBLE_EQ(seconds(0.4), 5);                           // 2 / 0.4
  EXPECT_DOUBLE_EQ(seconds(0.1), (10 + 4 * 2 * 2.3 / 3) / 3);  // 20 s: no cut
  EXPECT_DOUBLE_EQ(seconds(0.1, Objective::pipedream_paper), 10.0 / 3);
}

// A layer of 8 s and 1 GB on 2 hosts of 2 workers, with 1 GB/s and 0.5 GB/s.
TEST(PipeDream, EachLevelOfTheMachineAddsItsSynchronization) {
  const Profile profile = sequence({{"a", "", 3000, 5000, 0, 1e9}});
  const std::vector<Level> levels{{2, 1e9}, {2, 0.5e9}};
  const Partition code = pipedream(profile, levels);
  // (8 + 4 * 1 * 1 / 2) / 2 = 5 s on a host; gradients of the first stage count 1 / 2 between the hosts.
  EXPECT_DOUBLE_EQ(code.bottleneck_seconds, (5 + 4 * 1 * 1 / (0.5 * 2) / 2) / 2);
  EXPECT_EQ(code.data_parallel_seconds, code.bottleneck_seconds);
  EXPECT_EQ(code.stages[0].replicas, (std::vector<std::size_t>{2, 2}));
  EXPECT_EQ(code.stages[0].ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_DOUBLE_EQ(pipedream(profile, levels, with(Objective::pipedream_paper)).bottleneck_seconds,
                   std::max(std::max(8, 2) / 2, 2 * 1 * 2) / 2.0);
}

// The layers have too many parameters for replicas within a host, where the connection is slow. So the hosts
// are the replicas.
TEST(PipeDream, ReplicasOfAPipelineAreOnEachHost) {
  const Profile profile = sequence({{"a", "", 0, 4000, 0, 1e9}, {"b", "", 0, 4000, 0, 1e9}});
  const std::vector<Level> levels{{2, 1e8}, {2, 1e12}};
  const Partition found = pipedream(profile, levels);
  EXPECT_EQ(layers_of(found), (Layers{{0}, {1}}));
  EXPECT_EQ(ranks_of(found), (Ranks{{0, 2}, {1, 3}}));
  EXPECT_EQ(found.stages[0].replicas, (std::vector<std::size_t>{1, 2}));
}

// --- Limits ---

TEST(PipeDream, StraightStagesNeedALayerForEachWorker) {
  test::expect_error([] { return pipedream(two_layers(), three_workers, {.straight = true}); },
                     rpc::ErrorKind::not_found,
                     test::whole("pipedream: no partition of 2 layers uses exactly 3 workers, one a stage: "
                                 "allow fewer workers (fewer_workers)"));
  const Partition fewer = pipedream(two_layers(), three_workers, {.straight = true, .fewer_workers = true});
  EXPECT_EQ(layers_of(fewer), (Layers{{0}, {1}}));
  EXPECT_EQ(fewer.workers(), 2U);
  EXPECT_DOUBLE_EQ(fewer.bottleneck_seconds, 6);
}

// Two layers of 1 GB. In two stages the first one has 2 micro-batches in flight. In one stage all parameters
// are on each worker.
TEST(PipeDream, AMemoryLimitCountsTheMicrobatchesInFlight) {
  const Profile profile = sequence({{"a", "", 1000, 0, 0, 1e9}, {"b", "", 1000, 0, 0.5e9, 0.5e9}});
  const std::vector<Level> levels{{2, 1e9}};
  const auto find = [&](double bytes) { return pipedream(profile, levels, {.memory_bytes = bytes}); };
  EXPECT_EQ(layers_of(find(2e9)), (Layers{{0}, {1}}));
  EXPECT_EQ(
      test::message_of([&] { return find(1.9e9); }),
      "pipedream: no partition of 2 layers uses exactly 2 workers, and fits into 1900000000 bytes of memory "
      "each: allow more memory, or profile smaller micro-batches");
  const Profile smaller = sequence({{"a", "", 1000, 0, 0, 1e9}, {"b", "", 1000, 0, 0.4e9, 0.5e9}});
  EXPECT_EQ(layers_of(pipedream(smaller, levels, {.memory_bytes = 1.9e9})), (Layers{{0, 1}}));
}

TEST(PipeDream, MoreCutsThanAllowedAreAnError) {
  Profile profile;
  for (const char* name : {"a", "b", "c", "d"}) profile.layers.push_back({.name = name, .forward_ms = 1});
  const std::vector<Level> levels{{2, 1e9}};
  EXPECT_EQ(test::kind_of([&] { return pipedream(profile, levels, {.cuts = Cuts::all, .max_cuts = 15}); }),
            rpc::ErrorKind::resource_exhausted);
  EXPECT_EQ(pipedream(profile, levels, {.cuts = Cuts::all, .max_cuts = 16}).cuts, Cuts::all);
  EXPECT_EQ(pipedream(profile, levels, {.max_cuts = 15}).cuts, Cuts::in_order);
}

TEST(PipeDream, RefusesWrongOptions) {
  const auto error_of = [](std::vector<Level> levels, PipeDreamOptions options = {}) {
    return test::message_of([&] { return pipedream(two_layers(), levels, options); });
  };
  EXPECT_EQ(error_of({}), "pipedream: the machine has no levels, expected at least one");
  EXPECT_EQ(error_of({{0, 1e9}}), "pipedream: a level of the machine has 0 units, expected at least 1");
  EXPECT_EQ(error_of({{2, 0}}), "pipedream: the bandwidth is 0.000000, expected a finite number above 0");
  EXPECT_EQ(error_of({{2, 1}}, {.activation_compression = -1}),
            "pipedream: the compression of activations is -1.000000, expected a finite number above 0");
  EXPECT_EQ(error_of({{2, 1}}, {.memory_bytes = NAN}),
            "pipedream: the memory of a worker is nan, expected a finite number above 0");
  EXPECT_EQ(test::message_of([] { return objective_of("fast"); }),
            "objective: found 'fast', expected 'pipedream-code' or 'pipedream-paper'");
  EXPECT_EQ(objective_of("pipedream-paper"), Objective::pipedream_paper);
}

TEST(PipeDream, InputsAreInTheFirstStageAndUnreadItemsWithTheirSources) {
  Profile profile = sequence({{"in", "Input0", 1e6, 1e6, 1, 0},
                              {"a", "", 1000, 0, 1, 0},
                              {"b", "", 1000, 0, 1, 0},
                              {"item", "__getitem__(1)", 0, 0, 1, 0}});
  profile.layers.push_back({"mask", "Input1", 0, 0, 1, 0});
  profile.edges.push_back({4, 2});
  const std::vector<Level> levels{{2, 1e9}};
  EXPECT_EQ(layers_of(pipedream(profile, levels, {.straight = true})), (Layers{{0, 1, 4}, {2, 3}}));
}

// --- Against every partition of small graphs ---

struct Case {
  Profile profile;
  std::vector<Level> levels;
  PipeDreamOptions options;
};

Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const bool whole = below(3) == 0;  // whole numbers give equal times
  const auto figure = [&](double scale) {
    return scale * (whole ? static_cast<double>(below(4)) : std::uniform_real_distribution<>(0, 4)(random));
  };
  Case made;
  const std::size_t layers = 1 + below(6);
  const std::size_t shape = below(3);  // a chain; a chain with skips; any graph
  for (std::size_t i = 0; i < layers; ++i) {
    made.profile.layers.push_back(
        {"n" + std::to_string(i), "", figure(1000), figure(1000), figure(1e9), figure(0.5e9)});
    for (std::size_t from = 0; from < i; ++from)
      if ((shape < 2 && from + 1 == i) || (shape > 0 && below(3) == 0))
        made.profile.edges.push_back({from, i});
  }
  static const std::vector<std::vector<std::size_t>> machines{{1},    {2},    {3},    {4},      {5},
                                                              {2, 2}, {3, 2}, {1, 3}, {2, 2, 2}};
  for (const std::size_t units : machines[below(machines.size())])
    made.levels.push_back({units, 1e9 * std::pow(0.5, static_cast<double>(made.levels.size() + below(2)))});
  PipeDreamOptions& options = made.options;
  if (below(2) == 0) options.objective = Objective::pipedream_paper;
  options.straight = below(3) == 0;
  options.fewer_workers = below(3) == 0;
  if (below(2) == 0) options.activation_compression = std::pow(2.0, static_cast<double>(below(4)) - 1);
  if (below(2) == 0) options.memory_bytes = 1e9 * (1 + figure(5));
  options.cuts = Cuts::all;
  return made;
}

// Each layer is in one stage, data flows forward, and each rank has one stage.
void check_partition(const Case& given, const Partition& found) {
  std::vector<std::size_t> stage_of_layer(given.profile.layers.size(), found.stages.size());
  std::set<int> ranks;
  std::size_t workers = 1;
  for (const Level& level : given.levels) workers *= level.units;
  for (std::size_t stage = 0; stage < found.stages.size(); ++stage) {
    for (const std::size_t layer : found.stages[stage].layers) {
      EXPECT_EQ(stage_of_layer[layer], found.stages.size());
      stage_of_layer[layer] = stage;
    }
    std::size_t replicas = 1;
    for (const std::size_t each : found.stages[stage].replicas) replicas *= each;
    EXPECT_EQ(found.stages[stage].ranks.size(), replicas);
    EXPECT_EQ(found.stages[stage].replicas.size(), given.levels.size());
    for (const int rank : found.stages[stage].ranks) {
      EXPECT_TRUE(ranks.insert(rank).second) << "rank " << rank;
      EXPECT_LT(rank, static_cast<int>(workers));
    }
  }
  for (const std::size_t stage : stage_of_layer) EXPECT_LT(stage, found.stages.size());
  for (const Edge& edge : given.profile.edges) EXPECT_LE(stage_of_layer[edge.from], stage_of_layer[edge.to]);
  EXPECT_TRUE(given.options.fewer_workers || ranks.size() == workers) << ranks.size() << " of " << workers;
}

class PipeDreamSearch : public ::testing::TestWithParam<unsigned> {};

TEST_P(PipeDreamSearch, NoOtherPartitionIsFaster) {
  std::size_t possible = 0;
  for (unsigned seed = GetParam(); seed < GetParam() + 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case given = random_case(seed);
    const double best = EveryPartition(given.profile, given.levels, given.options).best_seconds();
    try {
      const Partition found = pipedream(given.profile, given.levels, given.options);
      EXPECT_NEAR(found.bottleneck_seconds, best, 1e-9 * best);
      check_partition(given, found);
      ++possible;
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), rpc::ErrorKind::not_found) << error.what();
      EXPECT_TRUE(std::isinf(best)) << best << " s are possible, but: " << error.what();
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(possible, 30U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PipeDreamSearch, ::testing::Range(0U, 2000U, 100U));

// In a chain, cuts in order are all possible cuts.
TEST(PipeDream, AllKindsOfCutsAreTheSameInAChain) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Case given = random_case(seed);
    given.profile = sequence(given.profile.layers);
    given.options.memory_bytes = std::nullopt;
    given.options.fewer_workers = true;
    const double all = pipedream(given.profile, given.levels, given.options).bottleneck_seconds;
    for (const Cuts cuts : {Cuts::whole_branches, Cuts::in_order}) {
      given.options.cuts = cuts;
      EXPECT_EQ(pipedream(given.profile, given.levels, given.options).bottleneck_seconds, all)
          << "seed " << seed;
    }
  }
}

}  // namespace pipedream_test
}  // namespace weft::partition::testing
