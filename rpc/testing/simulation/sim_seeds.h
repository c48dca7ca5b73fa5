// for_each_seed: a simulation run for many seeds; one that fails is printed, with the command that replays
// it.
//
//   const SimReport report = for_each_seed({.count = 1000, .test = "SimAgents.EveryCallEnds"}, simulate);
//   EXPECT_TRUE(report.ok()) << report.text;
//
// A seed fails where its body throws or its world has seen a violation; after a few failed seeds the run
// ends. From the environment: WEFT_SIM_SEED=n runs that seed alone, WEFT_SIM_TRACE=1 prints its events as
// they come, WEFT_SIM_SEEDS=n runs n seeds instead of `count`. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_world.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace weft::test {

struct SimSeeds {
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  std::string test;  // as --gtest_filter knows it, for the command
  SimOptions options;
  bool print = true;  // failures, as they come
};

struct SimReport {
  std::uint64_t seeds = 0;  // that were run
  std::vector<std::uint64_t> failed;
  std::uint64_t steps = 0;  // of all together
  std::string text;         // of the failures: what happened, the last events, the command

  bool ok() const { return failed.empty() && seeds != 0; }
};

// What the body's jobs refer to is kept by the world (SimWorld::keep), which ends after the body.
WEFT_EXPORT SimReport for_each_seed(const SimSeeds& seeds, const std::function<void(SimWorld&)>& body);

}  // namespace weft::test
