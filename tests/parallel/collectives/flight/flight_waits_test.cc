#include <weft/parallel/collectives/flight/flight_waits.h>

#include <gtest/gtest.h>

#include "tests/parallel/collectives/flight/flight_job.h"

namespace weft::collectives::testing {
namespace flight_waits_test {

// Creates a job whose ranks wait to receive from others. Returns its cycles as lists of ranks.
std::vector<std::vector<int>> cycles_of(int ranks, const std::vector<std::pair<int, int>>& waits_for) {
  FlightJob job(ranks);
  for (const auto& [rank, peer] : waits_for)
    job.message(rank, FlightKind::recv, peer, "float32[]", "a.cc:1", FlightState::begun);
  const auto dumps = job.dumps();
  std::vector<std::string> notes;
  const auto groups = flight_groups(dumps, notes);
  const auto waits = flight_waits(groups);
  std::vector<std::vector<int>> cycles;
  for (const FlightCycle& cycle : flight_cycles(waits)) {
    cycles.emplace_back();
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      EXPECT_EQ(cycle[i].awaited, cycle[(i + 1) % cycle.size()].wait->rank);
      cycles.back().push_back(cycle[i].wait->rank);
    }
    std::rotate(cycles.back().begin(), std::min_element(cycles.back().begin(), cycles.back().end()),
                cycles.back().end());
  }
  std::sort(cycles.begin(), cycles.end());
  return cycles;
}

using Cycles = std::vector<std::vector<int>>;

TEST(FlightCycles, AreFound) {
  EXPECT_EQ(cycles_of(2, {}), Cycles{});
  EXPECT_EQ(cycles_of(3, {{0, 1}, {1, 2}}), Cycles{});
  EXPECT_EQ(cycles_of(3, {{0, 1}, {1, 2}, {2, 0}}), (Cycles{{0, 1, 2}}));
  EXPECT_EQ(cycles_of(2, {{1, 1}}), (Cycles{{1}}));  // the rank waits for itself
}

TEST(FlightCycles, AreTheShortestOnes) {
  EXPECT_EQ(cycles_of(4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {3, 2}}), (Cycles{{2, 3}}));
}

TEST(FlightCycles, AreReportedOnce) {
  EXPECT_EQ(cycles_of(6, {{0, 1}, {1, 0}, {2, 3}, {3, 2}, {4, 0}, {5, 2}, {1, 2}}), (Cycles{{0, 1}, {2, 3}}));
  EXPECT_EQ(cycles_of(3, {{0, 1}, {1, 0}, {1, 2}, {2, 1}}).size(), 1U);  // both go through 1
}

TEST(FlightCycles, SeveralCyclesMayBeReachableFromOneRank) {
  EXPECT_EQ(cycles_of(5, {{0, 1}, {1, 2}, {2, 1}, {0, 3}, {3, 4}, {4, 3}}), (Cycles{{1, 2}, {3, 4}}));
}

TEST(FlightCycles, ALongCycleIsFound) {
  std::vector<std::pair<int, int>> waits;
  std::vector<int> all;
  for (int rank = 0; rank < 500; ++rank) {
    waits.push_back({rank, (rank + 1) % 500});
    all.push_back(rank);
  }
  EXPECT_EQ(cycles_of(500, waits), Cycles{all});
}

}  // namespace flight_waits_test
}  // namespace weft::collectives::testing
