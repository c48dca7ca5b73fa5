// for_each_seed: runs a simulation for many seeds. For a seed that fails, it prints the command that replays
// it.
//
//   const SimReport report = for_each_seed({.count = 1000, .test = "SimAgents.EveryCallEnds"}, simulate);
//   EXPECT_TRUE(report.ok()) << report.text;
//
// A seed fails if its body throws, or if its world reports a violation. The run stops after several failed
// seeds. Environment: WEFT_SIM_SEED=n runs only that seed, WEFT_SIM_TRACE=1 prints its events as they occur,
// WEFT_SIM_SEEDS=n runs n seeds instead of `count`. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_world.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft::test {

// The seeds of a run: `count` consecutive seeds, from `first`. options: the options of the world of each
// seed.
struct SimSeeds {
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  std::string test;  // the test's name as in --gtest_filter, for the printed command
  SimOptions options;
  bool print = true;  // print failures as they occur
};

struct SimReport {
  std::uint64_t seeds = 0;  // the number of seeds that were run
  std::vector<std::uint64_t> failed;
  std::uint64_t steps = 0;  // the sum over all seeds
  std::string text;         // for each failure: the error, the last events, the command

  bool ok() const { return failed.empty() && seeds != 0; }
};

// Runs `body` for each seed. If jobs refer to objects that `body` creates, pass these objects to
// SimWorld::keep(), because the world is destroyed after `body` returns.
WEFT_EXPORT SimReport for_each_seed(const SimSeeds& seeds, const std::function<void(SimWorld&)>& body);

}  // namespace weft::test
