#include <weft/parallel/schedule/liveness.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace weft::schedule::testing {
namespace liveness_test {

const Lifetime& find(const RankLiveness& rank, Held held, int microbatch) {
  return *std::find_if(rank.lifetimes.begin(), rank.lifetimes.end(), [&](const Lifetime& each) {
    return each.held == held && each.microbatch == microbatch;
  });
}

TEST(Liveness, ValuesLiveFromTheirOriginToTheirLastUse) {
  // 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
  // 1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1
  const Liveness live = liveness(place_communication(load("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")));
  const auto expect = [&](std::size_t rank, Held held, int microbatch, std::size_t first, std::size_t last,
                          int slot) {
    const Lifetime& found = find(live.ranks[rank], held, microbatch);
    EXPECT_EQ(found.first, first);
    EXPECT_EQ(found.last, last);
    EXPECT_EQ(found.slot, slot);
  };
  expect(0, Held::activation, 0, 0, 5, 0);
  expect(0, Held::activation, 1, 2, 7, 1);
  expect(0, Held::sent_activation, 1, 2, 3, 0);
  expect(0, Held::received_gradient, 1, 6, 7, 0);
  expect(1, Held::received_activation, 0, 0, 1, 0);
  expect(1, Held::received_activation, 1, 2, 5, 0);
  expect(1, Held::activation, 1, 5, 6, 0);
  expect(1, Held::sent_gradient, 0, 3, 4, 0);
  EXPECT_EQ(live.ranks[0].slots(Held::activation), 2);
  EXPECT_EQ(live.ranks[1].slots(Held::activation), 1);
  EXPECT_EQ(live.ranks[1].slots(Held::received_activation, {0, 1}), 1);
  EXPECT_EQ(live.ranks[1].slots(Held::received_gradient), 0);
}

TEST(Liveness, AWaitKeepsASentValueUntilItsBufferIsFree) {
  const Liveness live =
      liveness(load("0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"));
  EXPECT_EQ(find(live.ranks[0], Held::sent_activation, 0).last, 3u);
  EXPECT_EQ(live.ranks[0].slots(Held::sent_activation), 2);
}

// The receiver keeps the value of a skip connection while the micro-batch passes the stages in between.
TEST(Liveness, SkipConnectionsNeedTheirOwnCredits) {
  Schedule schedule = one_forward_one_backward({4, 8});
  schedule.edges = {{0, 1}, {0, 3}, {1, 2}, {2, 3}};
  const Liveness live = liveness(place_communication(schedule));
  EXPECT_EQ(live.ranks[1].slots(Held::received_activation, {0, 1}), 1);
  EXPECT_GT(live.ranks[3].slots(Held::received_activation, {0, 3}),
            live.ranks[3].slots(Held::received_activation, {2, 3}));
}

TEST(Liveness, VersionsLiveFromTheStashToTheirLastUse) {
  const Liveness live = liveness(load("0F0@0,0F1@0,0B0@0,0STASH@0,0STEP@1,0LOAD@0,0B1@0,0STEP@2\n"));
  EXPECT_EQ(find(live.ranks[0], Held::weights, 0).first, 3u);
  EXPECT_EQ(find(live.ranks[0], Held::weights, 0).last, 6u);
}

TEST(Liveness, NoTwoLifetimesShareASlot) {
  for (const Generator& generator : generators()) {
    const Schedule schedule = place_waits(place_communication(generator.make({4, 9})));
    const Liveness live = liveness(schedule);
    for (const RankLiveness& rank : live.ranks) {
      std::map<std::tuple<Held, int, Edge, int>, std::size_t> ends;
      for (const Lifetime& each : rank.lifetimes) {
        const auto [known, added] =
            ends.try_emplace({each.held, each.stage, each.edge, each.slot}, each.last);
        if (!added) {
          EXPECT_LT(known->second, each.first) << generator.name;
          known->second = each.last;
        }
        EXPECT_LE(each.first, each.last);
      }
    }
  }
}

// With one chunk, the slots equal the peak of the simulator.
TEST(Liveness, ActivationSlotsAreThePeakOfThePrediction) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) {
    const Schedule schedule = generate(name, {5, 12});
    const std::vector<double> peaks = predict(schedule).peak_activations;
    const Liveness live = liveness(schedule);
    for (std::size_t rank = 0; rank < 5; ++rank)
      EXPECT_EQ(live.ranks[rank].slots(Held::activation), peaks[rank]) << name;
  }
}

// The number of slots equals the largest number of overlapping lifetimes, also if a rank has several stages.
TEST(Liveness, TheNumberOfSlotsIsMinimal) {
  for (const Generator& generator : generators()) {
    const Liveness live = liveness(place_waits(place_communication(generator.make({4, 9}))));
    for (const RankLiveness& rank : live.ranks) {
      std::map<std::tuple<Held, int, Edge>, std::pair<int, int>> counts;  // slots, and overlapping lifetimes
      for (const Lifetime& each : rank.lifetimes) {
        auto& [slots, overlapping] = counts[{each.held, each.stage, each.edge}];
        slots = std::max(slots, each.slot + 1);
        const auto at = [&](const Lifetime& other) {
          return other.held == each.held && other.stage == each.stage && other.edge == each.edge &&
                 other.first <= each.first && each.first <= other.last;
        };
        overlapping = std::max(
            overlapping, static_cast<int>(std::count_if(rank.lifetimes.begin(), rank.lifetimes.end(), at)));
      }
      for (const auto& [key, count] : counts) EXPECT_EQ(count.first, count.second) << generator.name;
    }
  }
}

TEST(Liveness, RefusesAnInvalidSchedule) { EXPECT_THROW(liveness(load("0F0,0I0\n")), rpc::Error); }

}  // namespace liveness_test
}  // namespace weft::schedule::testing
