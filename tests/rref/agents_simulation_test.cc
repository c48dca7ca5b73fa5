// RRefs between agents under every fault, for many seeds. Further tests plant a fault and require that the
// simulation finds it.
//
// WEFT_SIM_SEED=n replays a seed, WEFT_SIM_SEEDS=n runs more.
#include <gtest/gtest.h>

#include "tests/rref/agents_sim.h"
#include "tests/support/sanitizer.h"

namespace weft::rref::sim {
namespace {

TEST(RRefAgentsSimulation, KeepsItsPromises) {
  weft::test::SimTally tally;
  const auto report =
      weft::test::for_each_seed({.count = weft::test::under_asan ? 200 : weft::test::times(1000),
                                 .test = "RRefAgentsSimulation.KeepsItsPromises"},
                                [&](SimWorld& world) {
                                  world.keep(std::make_shared<Simulation>(world, tally)).run();
                                  ++tally["seeds"];
                                });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"well", "failed", "reset", "partition", "stall", "crash", "crash of host", "blackhole",
                "fork_deletes refused", "fork_deletes again"});
}

// Connections are reset at any time: no object is lost, and no action fails.
TEST(RRefAgentsSimulation, LosesNothingToResets) {
  weft::test::SimTally tally;
  const auto report = weft::test::for_each_seed(
      {.count = weft::test::under_asan ? 200 : weft::test::times(1000),
       .test = "RRefAgentsSimulation.LosesNothingToResets"},
      [&](SimWorld& world) {
        world.keep(std::make_shared<Simulation>(world, tally, Fault::none, Misuse::none, Troubles::resets))
            .run();
        ++tally["seeds"];
      });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"well", "reset"});
}

struct Planted {
  const char* name;
  Fault fault;
  Misuse misuse;
  const char* found;  // the report of the simulation
};

class PlantedInRRefs : public testing::TestWithParam<Planted> {};

INSTANTIATE_TEST_SUITE_P(
    RRefAgentsSimulation, PlantedInRRefs,
    testing::Values(Planted{"AnswerIsLost", Fault::answer_is_lost, Misuse::none, "never ended"},
                    Planted{"EndsWhatItHolds", Fault::none, Misuse::ends_what_it_holds, "could not look at"},
                    Planted{"KeepsForEver", Fault::none, Misuse::keeps_for_ever, "is idle with object"},
                    Planted{"RetryIsLost", Fault::none, Misuse::retry_is_lost, "is idle with object"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlantedInRRefs, AreFoundAndReplayed) {
  weft::test::SimTally tally;
  weft::test::expect_found_and_replayed(GetParam().found, 300, [&](SimWorld& world) {
    world.keep(std::make_shared<Simulation>(world, tally, GetParam().fault, GetParam().misuse)).run();
  });
}

}  // namespace
}  // namespace weft::rref::sim
