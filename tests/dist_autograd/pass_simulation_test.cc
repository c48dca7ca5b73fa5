// Passes, their backwards and releases under every fault, for many seeds; and faults that are planted, each
// found by what it breaks.
//
// WEFT_SIM_SEED=n replays a seed, WEFT_SIM_SEEDS=n runs more.
#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <gtest/gtest.h>

#include "tests/dist_autograd/pass_sim.h"
#include "tests/support/sanitizer.h"

namespace weft::dist_autograd::sim {
namespace {

using weft::test::SimReport;

constexpr std::uint64_t seeds = weft::test::under_asan ? 200 : 1000;

TEST(PassSimulation, KeepsItsPromises) {
  Tally tally;
  const SimReport report = weft::test::for_each_seed(
      {.count = seeds, .test = "PassSimulation.KeepsItsPromises"}, [&](SimWorld& world) {
        world.keep(std::make_shared<Simulation>(world, tally)).run();
        ++tally["seeds"];
      });
  EXPECT_TRUE(report.ok()) << report.text;
  if (std::getenv("WEFT_SIM_TALLY") != nullptr)
    for (const auto& [what, times] : tally)
      std::fprintf(stderr, "%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
  if (tally["seeds"] < 1000) return;
  for (const char* event :
       {"smart", "fast", "failed", "reset", "partition", "stall", "crash", "crash of host", "blackhole"})
    EXPECT_GE(tally[event], 50U) << event;
}

struct Planted {
  const char* name;
  Fault fault;
  bool forgetful;
  const char* found;  // what the simulation says
};

class PlantedInPasses : public ::testing::TestWithParam<Planted> {};

INSTANTIATE_TEST_SUITE_P(
    PassSimulation, PlantedInPasses,
    ::testing::Values(Planted{"AnswerIsLost", Fault::answer_is_lost, false, "did not end"},
                      Planted{"RequestComesTwice", Fault::request_comes_twice, false,
                              "where nothing was wrong"},
                      Planted{"ReleaseIsForgotten", Fault::none, true, "is at rest in pass"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlantedInPasses, AreFoundAndReplayed) {
  Tally tally;
  std::string said;  // of the first seed that says it
  std::uint64_t guilty = 0;
  const auto run = [&](std::uint64_t seed) {
    SimWorld world(seed);
    try {
      world.keep(std::make_shared<Simulation>(world, tally, GetParam().fault, GetParam().forgetful)).run();
    } catch (const std::exception& error) {
      world.violation(error.what());
    }
    std::string all;
    for (const std::string& violation : world.violations()) all += violation + "\n";
    return all;
  };
  for (std::uint64_t seed = 1; seed <= 300 && guilty == 0; ++seed) {
    said = run(seed);
    if (said.find(GetParam().found) != std::string::npos) guilty = seed;
  }
  ASSERT_NE(guilty, 0U) << "nobody noticed";
  EXPECT_EQ(run(guilty), said);
}

}  // namespace
}  // namespace weft::dist_autograd::sim
