#include <weft/parallel/partition/partition.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::partition::testing {
namespace partition_test {

// in -> a -> b -> c -> d, and a -> d. The layer l has the description "layer L", except b and c: "Linear".
Profile skip_connection() {
  Profile profile = sequence({{"in", "Input0", 9000, 9000, 1, 0},
                              {"a", "layer A", 1000, 2000, 10, 100},
                              {"b", "Linear", 2000, 3000, 20, 200},
                              {"c", "Linear", 3000, 4000, 30, 300},
                              {"d", "layer D", 4000, 5000, 40, 400}});
  profile.edges.push_back({1, 4});
  return profile;
}

std::vector<std::vector<std::size_t>> layers_of(const Partition& partition) {
  std::vector<std::vector<std::size_t>> layers;
  for (const Stage& stage : partition.stages) layers.push_back(stage.layers);
  return layers;
}

using Layers = std::vector<std::vector<std::size_t>>;

TEST(Partition, CutsByCount) {
  const std::vector<std::size_t> counts{2, 2, 1};
  const Partition partition = cut_by_count(skip_connection(), counts);
  EXPECT_EQ(layers_of(partition), (Layers{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(partition.total_seconds, 24);  // the input does not count
  EXPECT_EQ(partition.bottleneck_seconds, 12);
  EXPECT_EQ(partition.speed_up(), 2);
  EXPECT_EQ(partition.workers(), 3U);
  const Stage& middle = partition.stages[1];
  EXPECT_EQ(middle.forward_seconds, 5);
  EXPECT_EQ(middle.backward_seconds, 7);
  EXPECT_EQ(middle.activation_bytes, 50);
  EXPECT_EQ(middle.parameter_bytes, 500);
  EXPECT_EQ(middle.sent_bytes, 30);
  EXPECT_EQ(middle.ranks, std::vector<int>{1});
  EXPECT_EQ(partition.stages[0].sent_bytes, 10);  // the output of a, which two stages read
  EXPECT_EQ(partition.stages[2].sent_bytes, 0);
}

TEST(Partition, CutsEvenly) {
  EXPECT_EQ(layers_of(cut_evenly(skip_connection(), 3)), (Layers{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(layers_of(cut_evenly(skip_connection(), 1)), (Layers{{0, 1, 2, 3, 4}}));
}

TEST(Partition, CutsByNameOrByAUniqueDescription) {
  const std::vector<std::string> names{"b", "layer D"};
  EXPECT_EQ(layers_of(cut_by_name(skip_connection(), names)), (Layers{{0, 1}, {2, 3}, {4}}));
}

TEST(Partition, CutsTheTopologicalOrder) {
  Profile profile = sequence({{.name = "c"}, {.name = "b"}, {.name = "a"}});
  profile.edges = {{2, 1}, {1, 0}};
  const std::vector<std::string> names{"b"};
  EXPECT_EQ(layers_of(cut_by_name(profile, names)), (Layers{{2}, {1, 0}}));
}

TEST(Partition, RefusesInvalidCuts) {
  const auto by_name = [](std::vector<std::string> names) {
    return test::message_of([&] { return cut_by_name(skip_connection(), names); });
  };
  EXPECT_EQ(by_name({"x"}), "cut_by_name: the profile has no layer 'x', expected a name such as 'in'");
  EXPECT_EQ(by_name({"Linear"}),
            "cut_by_name: 2 layers have the description 'Linear', expected one: use a layer's name");
  EXPECT_EQ(by_name({"in"}),
            "cut_by_name: 'in' is the first layer, expected a later one: a stage begins there in any case");
  for (const std::string second : {"a", "b"})
    EXPECT_EQ(by_name({"b", second}),
              "cut_by_name: '" + second +
                  "' does not come after 'b', expected names in topological order, each once");
  const auto by_count = [](std::vector<std::size_t> counts) {
    return test::message_of([&] { return cut_by_count(skip_connection(), counts); });
  };
  EXPECT_EQ(by_count({1, 2}), "cut_by_count: the stages have 3 layers together, expected the profile's 5");
  EXPECT_EQ(by_count({3, 3}),
            "cut_by_count: the stages have more than 5 layers together, expected the profile's 5");
  EXPECT_EQ(by_count({5, 0}), "cut_by_count: a stage has 0 layers, expected at least 1");
  EXPECT_EQ(test::message_of([] { return cut_evenly(skip_connection(), 6); }),
            "cut_evenly: 6 stages, expected 1 to 5, the number of layers");
}

TEST(Partition, GivesLayersTheirStages) {
  const Profile profile = with_stages(skip_connection(), cut_evenly(skip_connection(), 2));
  EXPECT_EQ(profile.layers[2].stage, 0U);
  EXPECT_EQ(profile.layers[3].stage, 1U);
}

TEST(Partition, IsPrintable) {
  Partition partition = cut_evenly(skip_connection(), 2);
  partition.stages[0].ranks = {0, 1, 2, 5};
  partition.stages[1].ranks = {3, 7};
  partition.stages[1].parameter_bytes = 3.5 * (1 << 20);
  EXPECT_EQ(to_text(skip_connection(), partition),
            "stage  ranks  layers  forward s  backward s  parameters  activations  sends  first .. last\n"
            "    0  0-2,5       3          3           5       300 B         30 B   30 B  in .. b\n"
            "    1    3,7       2          7           9     3.5 MiB         70 B    0 B  c .. d\n"
            "\n"
            "bottleneck 16 s\n"
            "expected speed-up 1.5 over one worker\n");
  partition.data_parallel_seconds = 40;
  EXPECT_TRUE(to_text(skip_connection(), partition).ends_with("over one worker, 2.5 over data parallel\n"));
}

TEST(Partition, WithoutTimesTheSpeedUpIsOne) {
  EXPECT_EQ(cut_evenly(sequence({{.name = "a"}, {.name = "b"}}), 2).speed_up(), 1);
}

}  // namespace partition_test
}  // namespace weft::partition::testing
