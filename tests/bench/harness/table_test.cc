#include "bench/harness/table.h"

#include <gtest/gtest.h>

namespace weft::bench::table_test {
namespace {

TEST(Table, AlignsFiguresAndStatesFailures) {
  const std::vector<Entry> entries{
      {"tiny", "weft", {{"p50_us", 12.34}, {"p99_us", 1234}}, {}, 7, 7, {}},
      {"tiny", "raw", {{"p50_us", 6}, {"p99_us", 7}}, {{"p50_us", {2.056, 3}}, {"p99_us", {9, 9}}}, 7, 7, {}},
      {"bulk", "weft", {{"GBps", 0.01234}}, {}, 6, 7, "late"},
      {"bulk", "raw", {}, {}, 0, 7, "died"}};
  EXPECT_EQ(table(entries, "weft"),
            "case  peer  p50 us  p99 us    GB/s  weft/peer  worst  rounds\n"
            "tiny  weft    12.3    1234                               7/7\n"
            "      raw     6.00    7.00               2.06   3.00     7/7\n"
            "bulk  weft                  0.0123                       6/7  failed: late\n"
            "      raw                                                0/7  failed: died\n");
}

}  // namespace
}  // namespace weft::bench::table_test
