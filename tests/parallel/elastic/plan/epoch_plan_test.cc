#include <weft/parallel/elastic/plan/epoch_plan.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/errors.h"

namespace weft::elastic {
namespace epoch_plan_test {

using rpc::ErrorKind;
using test::kind_of;
using Indices = std::vector<std::size_t>;

// The ranks of a training, without tensors.
struct Ranks {
  explicit Ranks(std::size_t size, int ranks, std::uint64_t seed = 0) : size(size), seed(seed) {
    set(ranks, {});
  }

  void set(int ranks, const EpochProgress& progress) {
    plans.clear();
    for (int rank = 0; rank < ranks; ++rank) {
      plans.emplace_back(size, true, seed);
      plans.back().set_ranks(rank, ranks);
      plans.back().set_progress(progress);
    }
  }
  // Runs a round on all ranks. Returns the samples that count.
  Indices step(std::size_t batch) {
    Indices all;
    double weights = 0;
    for (EpochPlan& plan : plans) {
      const auto round = plan.fetch(batch);
      EXPECT_TRUE(round);
      if (!round) return {};
      EXPECT_FALSE(round->indices.empty());
      EXPECT_LE(round->indices.size(), batch);
      EXPECT_TRUE(round->own == 0 || round->own == round->indices.size());
      all.insert(all.end(), round->indices.begin(), round->indices.begin() + static_cast<int>(round->own));
      if (round->own > 0) {  // each sample has the same part in the average over the ranks
        EXPECT_NEAR(round->weight / static_cast<double>(round->own * plans.size()),
                    1.0 / static_cast<double>(round->all), 1e-12);
      }
      weights += round->weight;
      plan.record();
    }
    EXPECT_NEAR(weights, static_cast<double>(plans.size()), 1e-12);
    return all;
  }
  bool at_end() const { return plans.front().left() == 0; }

  const std::size_t size;
  const std::uint64_t seed;
  std::vector<EpochPlan> plans;
};

void expect_each_once(Indices processed, std::size_t size) {
  Indices all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::sort(processed.begin(), processed.end());
  EXPECT_EQ(processed, all);
}

TEST(EpochPlanOf, AnEpochGivesEachSampleToOneRank) {
  Ranks ranks(10, 3);
  Indices processed;
  while (!ranks.at_end()) {
    const Indices round = ranks.step(2);
    processed.insert(processed.end(), round.begin(), round.end());
  }
  expect_each_once(processed, 10);
  for (EpochPlan& plan : ranks.plans) {
    EXPECT_FALSE(plan.fetch(2));
    EXPECT_EQ(plan.processed(), epoch_order(10, true, 0, 0));
  }
}

// Idle ranks have no separate samples until a round is recorded, also if that round is fetched again.
TEST(EpochPlanOf, RanksMayBeIdleForARound) {
  Indices first, second;
  for (int rank = 0; rank < 4; ++rank) {
    EpochPlan plan(15, false, 0);
    plan.set_ranks(rank, 4, {3, 1});
    for (int again = 0; again < 2; ++again) {
      const auto round = plan.fetch(2);
      EXPECT_EQ(round->all, 4U);
      EXPECT_EQ(round->own, rank % 2 == 0 ? 2U : 0U);
      EXPECT_EQ(round->weight, rank % 2 == 0 ? 2.0 : 0.0);
      EXPECT_FALSE(round->indices.empty());
      if (again == 0) {
        first.insert(first.end(), round->indices.begin(), round->indices.begin() + int(round->own));
        plan.rewind();
      }
    }
    const auto ahead = plan.fetch(2);  // as a loader does before the first round is recorded
    EXPECT_EQ(ahead->own, 2U);
    EXPECT_EQ(ahead->weight, 1.0);
    second.insert(second.end(), ahead->indices.begin(), ahead->indices.end());
    plan.record(), plan.record();
    EXPECT_EQ(plan.progress().processed, 12U);
    EXPECT_EQ(plan.fetch(2)->own, rank < 3 ? 1U : 0U);
  }
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, (Indices{0, 1, 2, 3}));
  EXPECT_EQ(second, (Indices{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(kind_of([] { EpochPlan(5, false, 0).set_ranks(0, 2, {0, 1}); }), ErrorKind::invalid_argument);
}

// Horovod's sampler asserts here.
TEST(EpochPlanOf, FewerSamplesThanRanksAreProcessedOnce) {
  for (int rank = 0; rank < 4; ++rank) {
    EpochPlan plan(5, false, 0);
    plan.set_ranks(rank, 4);
    plan.set_progress({.epoch = 0, .processed = 3});
    const auto round = plan.fetch(8);
    ASSERT_TRUE(round);
    EXPECT_EQ(round->all, 2U);
    EXPECT_EQ(round->own, rank < 2 ? 1U : 0U);
    EXPECT_EQ(round->indices, Indices{rank == 1 ? 4U : 3U}) << rank;
    EXPECT_EQ(round->weight, rank < 2 ? 2.0 : 0.0);
    EXPECT_FALSE(plan.fetch(8));
  }
}

TEST(EpochPlanOf, TheOrderDependsOnSeedAndEpoch) {
  std::set<Indices> orders;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      const Indices order = epoch_order(50, true, seed, epoch);
      expect_each_once(order, 50);
      EXPECT_EQ(order, epoch_order(50, true, seed, epoch));
      orders.insert(order);
    }
  EXPECT_EQ(orders.size(), 16U);
  EXPECT_EQ(epoch_order(4, false, 3, 7), (Indices{0, 1, 2, 3}));
  // The order is the same for all builds and platforms.
  EXPECT_EQ(epoch_order(8, true, 1, 2), (Indices{4, 5, 7, 0, 2, 1, 6, 3}));
}

// Any sequence of steps, commits, failures that lose uncommitted steps, and changes of the ranks.
TEST(EpochPlanOf, EachSampleIsProcessedOnceUnderAnySequenceOfChanges) {
  for (std::uint64_t sequence = 0; sequence < 10'000 && !::testing::Test::HasFailure(); ++sequence) {
    SCOPED_TRACE(sequence);
    std::mt19937_64 random(sequence);
    const auto draw = [&](std::uint64_t from, std::uint64_t to) { return from + random() % (to - from + 1); };
    const auto some_ranks = [&] { return static_cast<int>(draw(1, 6)); };
    const std::size_t size = draw(1, 40);
    Ranks ranks(size, some_ranks(), sequence);
    EpochProgress committed;
    Indices processed, since_commit;
    const auto commit = [&] {
      committed = ranks.plans.front().progress();
      processed.insert(processed.end(), since_commit.begin(), since_commit.end());
      since_commit.clear();
    };
    while (!ranks.at_end() || !since_commit.empty()) {
      switch (draw(0, 9)) {
        case 0:  // a failure: the survivors, and perhaps new ranks, have the last commit
          since_commit.clear();
          ranks.set(some_ranks(), committed);
          break;
        case 1:  // workers join or leave at a commit
          commit();
          ranks.set(some_ranks(), committed);
          break;
        case 2:
          commit();
          break;
        case 3:  // a loader has fetched ahead when the ranks change
          for (std::uint64_t ahead = draw(1, 3); ahead > 0; --ahead)
            for (EpochPlan& plan : ranks.plans) plan.fetch(2);
          for (std::size_t rank = 0; rank < ranks.plans.size(); ++rank)
            ranks.plans[rank].set_ranks(static_cast<int>(rank), static_cast<int>(ranks.plans.size()));
          break;
        default: {
          if (ranks.at_end()) {
            commit();
            break;
          }
          const Indices round = ranks.step(draw(1, 4));
          since_commit.insert(since_commit.end(), round.begin(), round.end());
        }
      }
    }
    expect_each_once(processed, size);
  }
}

TEST(EpochPlanOf, RefusesWhatItCannotPlan) {
  EXPECT_EQ(kind_of([] { EpochPlan(0, true, 0); }), ErrorKind::invalid_argument);
  EpochPlan plan(3, true, 0);
  EXPECT_EQ(kind_of([&] { plan.set_ranks(2, 2); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { plan.fetch(0); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { plan.record(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { plan.set_progress({.epoch = 0, .processed = 4}); }), ErrorKind::invalid_argument);
}

}  // namespace epoch_plan_test
}  // namespace weft::elastic
