#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "tests/support/errors.h"
#include "tests/support/sanitizer.h"

namespace weft::schedule::testing {
namespace generators_test {

std::string described(const Generator& generator, const Shape& shape) {
  return std::string(generator.name) + ": " + std::to_string(shape.ranks) + " ranks, " +
         std::to_string(shape.microbatches) + " micro-batches, " + std::to_string(shape.chunks) + " chunks";
}

// Fewer ranks under TSan, which finds nothing in pure functions.
constexpr int max_ranks = test::under_tsan ? 6 : 16;

// Calls check(shape) for 1 to max_ranks ranks, 1 to 4 chunks and 1 to 64 micro-batches: all small numbers,
// and those around the sizes at which schedules change their phases. For 4 ranks all numbers.
template <class Check>
void for_each_shape(const Generator& generator, Check&& check) {
  for (int p = 1; p <= max_ranks; ++p) {
    std::set<int> sizes = {p, p + 1, 2 * p - 2, 2 * p - 1, 2 * p, 2 * p + 1, 3 * p, 33, 48, 63, 64};
    for (int m = 1; m <= (p == 4 && !test::under_tsan ? 64 : 6); ++m) sizes.insert(m);
    sizes.erase(0);
    for (int v = generator.min_chunks; v <= (generator.max_chunks == 0 ? 4 : generator.max_chunks); ++v)
      for (const int m : sizes) check(Shape{p, m, v});
  }
}

double most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

class EveryGenerator : public ::testing::TestWithParam<Generator> {};

// validate() checks that each micro-batch is computed once on each stage and that the schedule completes.
TEST_P(EveryGenerator, IsValidAndItsMessagesHaveOneOrder) {
  const Generator& generator = GetParam();
  for_each_shape(generator, [&](const Shape& shape) {
    try {
      const Schedule schedule = generator.make(shape);
      ASSERT_EQ(static_cast<int>(schedule.ranks.size()), shape.ranks);
      ASSERT_EQ(schedule.stages(), shape.ranks * shape.chunks);
      prove_message_order(place_communication(schedule));
    } catch (const rpc::Error& error) {
      FAIL() << described(generator, shape) << ": " << error.what();
    }
  });
}

TEST_P(EveryGenerator, RoundTripsItsText) {
  for (const int m : {1, 3, 8}) {
    const Schedule schedule = place_communication(GetParam().make({4, m}));
    EXPECT_EQ(load(save(schedule)), schedule);
  }
}

TEST_P(EveryGenerator, RefusesInvalidSizes) {
  EXPECT_THROW(GetParam().make({0, 1}), rpc::Error);
  EXPECT_THROW(GetParam().make({1, 0}), rpc::Error);
  EXPECT_THROW(GetParam().make({1, 1, -1}), rpc::Error);
  EXPECT_THROW(GetParam().make({1'000'000, 1'000'000}), rpc::Error);
  if (GetParam().max_chunks != 0) {
    EXPECT_THROW(GetParam().make({2, 2, 5}), rpc::Error);
  }
}

std::vector<Generator> all_generators() { return {generators().begin(), generators().end()}; }

INSTANTIATE_TEST_SUITE_P(All, EveryGenerator, ::testing::ValuesIn(all_generators()), [](const auto& info) {
  std::string name(info.param.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// --- Closed forms, with equal costs and no time for messages ---

// idle / (work + idle) of rank 0, exactly: both sides are one division of the same two integers.
void expect_bubble(const Schedule& schedule, int idle, int work, const std::string& about) {
  const Prediction prediction = predict(schedule);
  ASSERT_EQ(prediction.busy[0], work) << about;
  ASSERT_EQ(prediction.period, work + idle) << about;
  ASSERT_EQ(prediction.bubble, static_cast<double>(idle) / (work + idle)) << about;
}

// Calls check(p, m, text) for 1 to max_ranks ranks, and sizes from `least(p)` micro-batches on.
template <class Least, class Check>
void from_least(Least&& least, Check&& check) {
  for (int p = 1; p <= max_ranks; ++p)
    for (const int m : {least(p), least(p) + 1, 2 * p + 1, 48, 64})
      if (m >= least(p)) check(p, m, std::to_string(p) + " ranks, " + std::to_string(m) + " micro-batches");
}

constexpr auto any_number = [](int) { return 1; };
constexpr auto as_many_as_ranks = [](int p) { return p; };
constexpr auto twice_the_ranks = [](int p) { return 2 * p - 1; };

// (p-1)/(m+p-1); a micro-batch takes 3 units on a rank.
TEST(Generators, FillDrainAnd1F1BHaveTheBubbleOfTheirPapers) {
  from_least(any_number, [](int p, int m, const std::string& about) {
    expect_bubble(fill_drain({p, m}), 3 * (p - 1), 3 * m, about);
    expect_bubble(one_forward_one_backward({p, m}), 3 * (p - 1), 3 * m, about);
    expect_bubble(shifting_buffer({p, m}), 3 * (p - 1), 3 * m, about);
  });
}

// (p-1)/(vm+p-1)
TEST(Generators, InterleavedSchedulesHaveTheBubbleOfTheirPapers) {
  for (int v = 1; v <= 4; ++v)
    from_least(as_many_as_ranks, [v](int p, int m, const std::string& about) {
      expect_bubble(looped_breadth_first({p, m, v}), 3 * (p - 1), 3 * v * m, about);
      expect_bubble(shifting_buffer({p, m, v}), 3 * (p - 1), 3 * v * m, about);
      if (m % p == 0) expect_bubble(interleaved({p, m, v}), 3 * (p - 1), 3 * v * m, about);
    });
}

// (p-1)/(3m+p-1)
TEST(Generators, ZbH1HasTheBubbleOfItsPaper) {
  from_least(as_many_as_ranks, [](int p, int m, const std::string& about) {
    expect_bubble(zb_h1({p, m}), p - 1, 3 * m, about);
  });
}

// (p-1)/(3vm+p-1)
TEST(Generators, InterleavedZeroBubbleSplitsTheBubbleByTheChunks) {
  for (int v = 1; v <= 4; ++v)
    from_least(as_many_as_ranks, [v](int p, int m, const std::string& about) {
      expect_bubble(interleaved_zero_bubble({p, m, v}), p - 1, 3 * v * m, about);
    });
}

TEST(Generators, ZbH2AndZbVHaveNoBubble) {
  from_least(twice_the_ranks, [](int p, int m, const std::string& about) {
    expect_bubble(zb_h2({p, m}), 0, 3 * m, about);
    expect_bubble(zb_v({p, m}), 0, 6 * m, about);
  });
}

// V-Half waits for 0.58 of the time for which 1F1B waits with stages of two chunks, V-Min for two thirds.
TEST(Generators, VHalfAndVMinWaitLessThan1F1B) {
  for (int p = 2; p <= 16; ++p) {
    const double waits = 6 * (p - 1);
    const Prediction half = predict(v_half({p, 4 * p})), min = predict(v_min({p, 4 * p}));
    EXPECT_LE(half.period - half.busy[0], waits * 0.58) << p;
    EXPECT_LE(half.time - half.busy[0], waits * 0.58) << p;
    EXPECT_LE(3 * (min.period - min.busy[0]), 2 * waits) << p;
    EXPECT_LE(3 * (min.time - min.busy[0]), 2 * waits) << p;
  }
}

// --- Peak memory, in activations of a stage ---

void expect_peak(const Generator& generator, int (*bound)(const Shape& shape)) {
  for_each_shape(generator, [&](const Shape& shape) {
    const double peak = most(predict(generator.make(shape)).peak_activations);
    ASSERT_LE(peak, bound(shape)) << described(generator, shape);
    ASSERT_LE(peak, shape.microbatches * shape.chunks) << described(generator, shape);
  });
}

const Generator& named(std::string_view name) {
  return *std::find_if(generators().begin(), generators().end(),
                       [&](const Generator& each) { return each.name == name; });
}

TEST(Generators, OneForwardOneBackwardHoldsAsManyMicroBatchesAsRanks) {
  for (const char* name : {"1f1b", "zb-h1", "pipedream", "pipedream-2bw"}) {
    for (int p = 1; p <= max_ranks; ++p)
      for (const int m : {1, p, 2 * p, 64})
        for (int rank = 0; rank < p; ++rank) {
          const double peak =
              predict(named(name).make({p, m})).peak_activations[static_cast<std::size_t>(rank)];
          const int bound = std::string_view(name) == "zb-h1" ? p : p - rank;
          ASSERT_EQ(peak, std::min(bound, named(name).make({p, m}).microbatches))
              << name << ' ' << p << ' ' << m << ' ' << rank;
        }
  }
}

TEST(Generators, ZeroBubbleHoldsNoMoreThanItsPaperSays) {
  expect_peak(named("zb-h2"), [](const Shape& shape) { return 2 * shape.ranks - 1; });
  expect_peak(named("zb-v"), [](const Shape& shape) { return 2 * shape.ranks; });
  expect_peak(named("dualpipe-v"), [](const Shape& shape) { return 2 * shape.ranks + 1; });
}

// Half and a third of 2p, plus a constant.
TEST(Generators, VHalfAndVMinHoldHalfAndAThirdOf1F1B) {
  expect_peak(named("v-half"), [](const Shape& shape) { return shape.ranks + 2; });
  expect_peak(named("v-min"), [](const Shape& shape) { return (2 * (shape.ranks + 4) + 2) / 3; });
}

TEST(Generators, InterleavedHoldsTheWarmUpAndOneMore) {
  for (const char* name : {"interleaved", "interleaved-zb"})
    for (int p = 1; p <= max_ranks; ++p)
      for (int v = 2; v <= 4; ++v) {
        const double peak = most(predict(named(name).make({p, 2 * p, v})).peak_activations);
        EXPECT_EQ(peak, std::min((v - 1) * p + 1 + (named(name).name == "interleaved" ? 2 : 1) * (p - 1),
                                 2 * p * v));
      }
}

// --- Lists ---

TEST(Generators, SmallSchedulesAreAsInThePapers) {
  EXPECT_EQ(save(fill_drain({2, 2})), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_EQ(save(one_forward_one_backward({2, 3})), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(save(zb_h1({2, 2})), "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n");
  EXPECT_EQ(save(looped_breadth_first({2, 2, 2})),
            "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0\n1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n");
}

TEST(Generators, AllRanksOfAShiftingBufferHaveAnActionInEachTick) {
  EXPECT_EQ(save(shifting_buffer({3, 2})),
            "0F0,0F1,,,,,0B1,0B0\n"
            ",1F0,1F1,,,1B1,1B0,\n"
            ",,2F0,2F1,2B1,2B0,,\n");
}

TEST(Generators, FewerMicroBatchesThanRanksAreAllComputed) {
  EXPECT_EQ(save(one_forward_one_backward({3, 1})), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  EXPECT_EQ(save(one_forward_one_backward({2, 2})), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(save(zb_v({2, 1})), "0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
}

TEST(Generators, AnUnknownNameListsTheKnownOnes) {
  EXPECT_NE(test::message_of([] {
              return generate("zb-w", {2, 2});
            }).find("unknown schedule 'zb-w', expected one of gpipe, 1f1b, "),
            std::string::npos);
}

}  // namespace generators_test
}  // namespace weft::schedule::testing
