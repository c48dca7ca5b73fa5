#include <weft/parallel/planner/cost_model.h>

#include <gtest/gtest.h>

namespace weft::planner::testing {
namespace cost_model_test {

constexpr Machine two_hosts{.hosts = 2,
                            .ranks_per_host = 4,
                            .bytes_per_second = 100,
                            .host_bytes_per_second = 40,
                            .latency = 1,
                            .host_latency = 5};

void expect_link(const Link& link, double latency, double bytes_per_second) {
  EXPECT_EQ(link.latency, latency);
  EXPECT_EQ(link.bytes_per_second, bytes_per_second);
}

TEST(CostModel, AnAllReduceIsARingWithinAHostAndOneOverTheHosts) {
  const Link link{.latency = 1, .bytes_per_second = 10}, slow{.latency = 3, .bytes_per_second = 5};
  EXPECT_EQ(message_seconds(link, 100), 11);
  EXPECT_EQ(message_seconds(link, 0), 0);
  EXPECT_EQ(all_reduce_seconds({.local = {link, 4}}, 400), 2 * 3 * (1 + 100 / 10.0));
  EXPECT_EQ(all_reduce_seconds({.local = {link, 4}, .across = {slow, 2}}, 400),
            2 * 3 * (1 + 100 / 10.0) + 2 * (3 + 200 / 5.0));
  EXPECT_EQ(all_reduce_seconds({}, 400), 0);
  EXPECT_EQ(all_reduce_seconds({.local = {link, 4}}, 0), 0);
}

void expect_levels(const Levels& levels, int local, int hosts, double host_bytes_per_second) {
  EXPECT_EQ(levels.local.ranks, local);
  expect_link(levels.local.link, 1, 100);
  EXPECT_EQ(levels.across.ranks, hosts);
  if (hosts > 1) expect_link(levels.across.link, 5, host_bytes_per_second);
}

TEST(CostModel, GroupsThatLeaveTheirHostsShareItsBandwidth) {
  expect_levels(levels_of(two_hosts, 4, 1), 4, 1, 0);
  expect_levels(levels_of(two_hosts, 2, 2), 2, 1, 0);
  expect_levels(levels_of(two_hosts, 8, 1), 4, 2, 40);
  expect_levels(levels_of(two_hosts, 4, 2), 2, 2, 20);
  expect_levels(levels_of(two_hosts, 2, 4), 1, 2, 10);
  Machine fast = two_hosts;
  fast.host_bytes_per_second = 1e6;  // a rank is limited by its bandwidth within the host
  expect_levels(levels_of(fast, 8, 1), 4, 2, 100);
}

TEST(CostModel, TheOrderDecidesWhichPipelineMessagesLeaveAHost) {
  const Grid close{.data = 2, .pipeline = 4, .order = Order::pipeline_inside};
  for (int from = 0; from < 3; ++from) expect_link(pipeline_link(two_hosts, close, from, from + 1), 1, 100);
  // Ranks 0 and 1 are the first stage, 2 and 3 the second one: two messages leave each host.
  const Grid far{.data = 2, .pipeline = 4, .order = Order::data_inside};
  expect_link(pipeline_link(two_hosts, far, 0, 1), 1, 100);
  expect_link(pipeline_link(two_hosts, far, 1, 2), 5, 20);
  expect_link(pipeline_link(two_hosts, far, 2, 1), 5, 20);
  expect_link(pipeline_link(two_hosts, far, 3, 0), 5, 20);
  // Each rank of a tensor group sends the value.
  expect_link(pipeline_link(two_hosts, {.pipeline = 2, .tensor = 4}, 0, 1), 5, 10);
}

Model three_layers() {
  Model model{
      .profile = partition::sequence(
          {{"in", "Input0", 0, 0, 4096}, {"first", "", 10, 30, 800, 64}, {"second", "", 20, 40, 400, 80}})};
  model.split = {false, true, false};
  model.kept_bytes = {0, 4000, 400};
  model.microbatch = 2;
  return model;
}

TEST(CostModel, ASplitLayerHasAPartAndReducesItsOutput) {
  const RankModel rank =
      rank_model(three_layers(), 2, 4, {.local = {{.latency = 0.5, .bytes_per_second = 100}, 4}});
  ASSERT_EQ(rank.profile.layers.size(), 2U);  // without the input
  EXPECT_EQ(rank.profile.edges, (std::vector<partition::Edge>{{0, 1}}));
  const double reductions = 2 * (2 * 3 * (0.5 + 200 / 100.0));
  const partition::Layer& first = rank.profile.layers[0];
  EXPECT_DOUBLE_EQ(first.forward_ms, 10.0 / 4 + 1000 * reductions);
  EXPECT_DOUBLE_EQ(first.backward_ms, 30.0 / 4 + 1000 * reductions);
  EXPECT_EQ(first.parameter_bytes, 16);
  EXPECT_EQ(first.activation_bytes, 800);
  EXPECT_EQ(rank.kept_bytes, (std::vector<double>{800 + 3200 / 4.0, 400}));
  EXPECT_EQ(rank.tensor_seconds, (std::vector<double>{reductions, 0}));
  const partition::Layer& second = rank.profile.layers[1];
  EXPECT_EQ(second, (partition::Layer{"second", "", 20, 40, 400, 80}));
}

TEST(CostModel, OneRankHasTheCostsOfTheProfile) {
  Model model = three_layers();
  const RankModel rank = rank_model(model, 2, 1, {});
  EXPECT_EQ(rank.profile.layers[0], model.profile.layers[1]);
  EXPECT_EQ(rank.kept_bytes, (std::vector<double>{4000, 400}));
  model.kept_bytes.clear();
  EXPECT_EQ(rank_model(model, 2, 1, {}).kept_bytes, (std::vector<double>{800, 400}));
}

TEST(CostModel, TimesAndActivationsScaleWithTheMicrobatch) {
  const RankModel rank = rank_model(three_layers(), 6, 1, {});
  EXPECT_EQ(rank.profile.layers[1], (partition::Layer{"second", "", 60, 120, 1200, 80}));
  EXPECT_EQ(rank.kept_bytes, (std::vector<double>{12000, 1200}));
}

}  // namespace cost_model_test
}  // namespace weft::planner::testing
