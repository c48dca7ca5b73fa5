// Passes, backwards and releases under every fault, for many seeds. Further tests plant a fault and require
// that the simulation finds it. WEFT_SIM_SEED=n replays a seed, WEFT_SIM_SEEDS=n runs more.
#include <gtest/gtest.h>

#include "tests/dist_autograd/pass_sim.h"
#include "tests/support/sanitizer.h"

namespace weft::dist_autograd::sim {
namespace {

using weft::test::SimReport;

constexpr std::uint64_t seeds = weft::test::under_asan ? 200 : 1000;

TEST(PassSimulation, KeepsItsPromises) {
  weft::test::SimTally tally;
  const SimReport report = weft::test::for_each_seed(
      {.count = seeds, .test = "PassSimulation.KeepsItsPromises"}, [&](SimWorld& world) {
        world.keep(std::make_shared<Simulation>(world, tally)).run();
        ++tally["seeds"];
      });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"smart", "fast", "deferred", "failed", "reset", "partition", "stall", "crash",
                "crash of host", "blackhole"});
}

// Connections are reset at any time: no pass is lost, and no step fails. Fewer seeds, because
// KeepsItsPromises has resets too.
TEST(PassSimulation, LosesNothingToResets) {
  weft::test::SimTally tally;
  const SimReport report = weft::test::for_each_seed(
      {.count = seeds / 4, .test = "PassSimulation.LosesNothingToResets"}, [&](SimWorld& world) {
        world.keep(std::make_shared<Simulation>(world, tally, Fault::none, false, Troubles::resets)).run();
        ++tally["seeds"];
      });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"smart", "fast", "reset"});
}

struct Planted {
  const char* name;
  Fault fault;
  bool forgetful;
  const char* found;  // the report of the simulation
};

class PlantedInPasses : public ::testing::TestWithParam<Planted> {};

INSTANTIATE_TEST_SUITE_P(
    PassSimulation, PlantedInPasses,
    ::testing::Values(Planted{"AnswerIsLost", Fault::answer_is_lost, false, "did not end"},
                      Planted{"RequestComesTwice", Fault::request_comes_twice, false,
                              "where nothing was wrong"},
                      Planted{"ReleaseIsForgotten", Fault::none, true, "is idle in pass"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlantedInPasses, AreFoundAndReplayed) {
  weft::test::SimTally tally;
  weft::test::expect_found_and_replayed(GetParam().found, 300, [&](SimWorld& world) {
    world.keep(std::make_shared<Simulation>(world, tally, GetParam().fault, GetParam().forgetful)).run();
  });
}

}  // namespace
}  // namespace weft::dist_autograd::sim
