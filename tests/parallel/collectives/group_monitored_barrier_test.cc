// Group::monitored_barrier, on every backend.
#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_monitored_barrier_test {

using Ranks = std::vector<int>;
using MissingRanks = std::vector<rpc::Future<Ranks>>;

class MonitoredBarriers : public OfFew {
 protected:
  MissingRanks begin_but(const std::vector<Group>& of, int missing, Timeout timeout) {
    MissingRanks futures;
    for (const Group& group : of)
      if (group.rank() != missing) futures.push_back(group.monitored_barrier(timeout));
    return futures;
  }
  void expect_missing(MissingRanks futures, const Ranks& expected) {
    for (auto& future : futures) EXPECT_EQ(got(std::move(future)), expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, MonitoredBarriers, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(MonitoredBarriers, CompleteWhenAllRanksHaveCalledThem) {
  for (int i = 0; i < 3; ++i) {
    MissingRanks barriers;
    Futures collectives;
    // In any order relative to collectives.
    for (const Group& group : groups) {
      if (group.rank() == ranks - 1) {
        for (const auto& barrier : barriers) EXPECT_FALSE(barrier.ready());
      }
      if (group.rank() == 1) collectives.push_back(group.barrier());
      barriers.push_back(group.monitored_barrier());
      if (group.rank() != 1) collectives.push_back(group.barrier());
    }
    expect_missing(std::move(barriers), {});
    for (auto& future : collectives) got(std::move(future));
  }
}

TEST_P(MonitoredBarriers, ReportTheMissingRankToTheOthersAndTheGroupContinues) {
  expect_missing(begin_but(groups, 1, 50ms), {1});
  together(groups, [](const Group& group) { return group.barrier(); });
  expect_missing(begin_but(groups, -1, test::too_long), {});
}

TEST_P(MonitoredBarriers, ReportAllMissingRanks) {
  Ranks others;
  for (int rank = 1; rank < ranks; ++rank) others.push_back(rank);
  EXPECT_EQ(got(groups[0].monitored_barrier(0s)), others);
  EXPECT_EQ(got(groups[0].monitored_barrier(10ms)), others);
}

TEST_P(MonitoredBarriers, OnlyTheTimeoutOfRankZeroCounts) {
  MissingRanks barriers;
  for (int rank = 1; rank < ranks; ++rank) barriers.push_back(groups[rank].monitored_barrier(0s));
  barriers.push_back(groups[0].monitored_barrier());
  expect_missing(std::move(barriers), {});
}

TEST_P(MonitoredBarriers, ReportThatRankZeroIsMissingAfterTheTimeoutOfTheGroup) {
  const auto impatient = company.groups({.timeout = 200ms});
  expect_missing(begin_but(impatient, 0, 1ms), {0});
}

TEST_P(MonitoredBarriers, ARankThatIsLateTakesPartInTheNextOne) {
  expect_missing(begin_but(groups, 1, 20ms), {1});
  auto late = groups[1].monitored_barrier();
  auto barriers = begin_but(groups, 1, test::too_long);
  barriers.push_back(std::move(late));
  expect_missing(std::move(barriers), {});
}

TEST_P(MonitoredBarriers, OneAtATimeOnEachRank) {
  auto first = groups[0].monitored_barrier(test::too_long);
  test::expect_error(groups[0].monitored_barrier(), ErrorKind::invalid_argument,
                     "wait until it has completed", "group_monitored_barrier_test.cc");
  auto others = begin_but(groups, 0, test::too_long);
  others.push_back(std::move(first));
  expect_missing(std::move(others), {});
}

TEST_P(MonitoredBarriers, AMemberThatLeavesIsMissing) {
  auto barriers = begin_but(groups, 2, 300ms);
  got(company.agent(2).leave());
  expect_missing(std::move(barriers), {2});
}

TEST_P(MonitoredBarriers, FailWithTheGroup) {
  auto barriers = begin_but(groups, 2, test::too_long);
  company.end(2);
  for (auto& future : barriers) test::expect_error(std::move(future), ErrorKind::peer_lost, "worker2");
}

}  // namespace group_monitored_barrier_test
}  // namespace weft::collectives::testing
