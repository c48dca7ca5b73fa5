// Agents under every fault, for many seeds. Further tests plant a fault and require that the simulation finds
// it.
//
// WEFT_SIM_SEED=n replays a seed, WEFT_SIM_SEEDS=n runs more.
#include <gtest/gtest.h>

#include "tests/rpc/simulation/agents_sim.h"
#include "tests/support/sanitizer.h"

// Defined if the process runs under LeakSanitizer.
extern "C" {
__attribute__((weak)) void __lsan_disable();
__attribute__((weak)) void __lsan_enable();
}

namespace weft::test::agents_simulation_test {
namespace {

constexpr std::uint64_t seeds = under_asan ? 200 : times(1000);

TEST(AgentsSimulation, KeepsItsPromises) {
  SimTally tally;
  const SimReport report =
      for_each_seed({.count = seeds, .test = "AgentsSimulation.KeepsItsPromises"}, [&](SimWorld& world) {
        world.keep(std::make_shared<Simulation>(world, tally)).run();
        ++tally["seeds"];
      });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"value", "deadline_exceeded", "cancelled", "peer_lost", "unavailable", "shut_down", "aborted",
                "invalid_argument", "handler_failed", "not sent", "failed, and ran", "reset", "partition",
                "stall", "crash", "shut down", "drained", "crash of host", "blackhole"});
}

// --- Planted faults ---

struct Planted {
  const char* name;
  Fault fault;
  const char* found;  // a part of the simulation's report
};

// Memory that a planted fault keeps is not a leak of the program.
class PlantedFaults : public testing::TestWithParam<Planted> {
 protected:
  PlantedFaults() {
    if (__lsan_disable != nullptr) __lsan_disable();
  }
  ~PlantedFaults() override {
    if (__lsan_enable != nullptr) __lsan_enable();
  }
};

INSTANTIATE_TEST_SUITE_P(
    AgentsSimulation, PlantedFaults,
    testing::Values(Planted{"AnswerIsLost", Fault::answer_is_lost, "never completed"},
                    Planted{"RequestComesTwice", Fault::request_comes_twice, "its handler ran twice"},
                    Planted{"CompletesTwice", Fault::completes_twice, "completed twice"},
                    Planted{"SaysNotSent", Fault::says_not_sent, "the error that it was not sent"},
                    Planted{"MemoryIsLetGoEarly", Fault::memory_is_let_go_early, "is not what was"},
                    Planted{"TouchesWhatItDelivered", Fault::touches_what_it_delivered, "is not what was"},
                    Planted{"MemoryIsKept", Fault::memory_is_kept, "pieces of lent memory are held"},
                    Planted{"CallIsKept", Fault::call_is_kept, "calls that it serves"},
                    Planted{"ConnectionIsKept", Fault::connection_is_kept, "connections open"},
                    Planted{"CreditIsLost", Fault::credit_is_lost, "of credit have not come back"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlantedFaults, AreFoundAndReplayed) {
  SimTally tally;
  expect_found_and_replayed(GetParam().found, 3'000, [&](SimWorld& world) {
    world.keep(std::make_shared<Simulation>(world, tally, GetParam().fault)).run();
  });
}

}  // namespace
}  // namespace weft::test::agents_simulation_test
