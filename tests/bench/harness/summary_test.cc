#include "bench/harness/summary.h"

#include <gtest/gtest.h>

namespace weft::bench::summary_test {
namespace {

Row row(const std::string& peer, int round, Figures figures, std::string error = {}) {
  return {"rpc", "tiny", peer, round, "0/1", "1/1", {}, std::move(figures), std::move(error)};
}

TEST(Summary, RatiosAreTakenWithinRounds) {
  // The medians' ratio would be 1: the machine was slow in other rounds for one than for the other.
  const auto entries = summarise(
      {row("weft", 1, {{"p50_us", 10}}), row("raw", 1, {{"p50_us", 20}}), row("weft", 2, {{"p50_us", 30}}),
       row("raw", 2, {{"p50_us", 10}}), row("weft", 3, {{"p50_us", 20}}), row("raw", 3, {{"p50_us", 40}})},
      "weft");
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_TRUE(entries[0].ratios.empty());
  EXPECT_EQ(entries[1].medians.at("p50_us"), 20);
  EXPECT_EQ(entries[1].ratios.at("p50_us").median, 0.5);
  EXPECT_EQ(entries[1].ratios.at("p50_us").worst, 3);
}

TEST(Summary, TheWorstRatioOfARateIsTheLowest) {
  const auto entries = summarise({row("weft", 1, {{"GBps", 2}}), row("raw", 1, {{"GBps", 4}}),
                                  row("weft", 2, {{"GBps", 3}}), row("raw", 2, {{"GBps", 4}})},
                                 "weft");
  EXPECT_EQ(entries[1].ratios.at("GBps").worst, 0.5);
}

TEST(Summary, FailedRoundsAreCountedAndLeftOut) {
  const auto entries = summarise({row("weft", 1, {{"p50_us", 10}}), row("raw", 1, {}, "died"),
                                  row("weft", 2, {}, "late"), row("raw", 2, {{"p50_us", 5}})},
                                 "weft");
  EXPECT_EQ(entries[1].measured, 1);
  EXPECT_EQ(entries[1].rounds, 2);
  EXPECT_EQ(entries[1].error, "died");
  EXPECT_TRUE(entries[1].ratios.empty());
}

}  // namespace
}  // namespace weft::bench::summary_test
