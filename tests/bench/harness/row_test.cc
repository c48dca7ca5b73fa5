#include "bench/harness/row.h"

#include <gtest/gtest.h>

namespace weft::bench::row_test {
namespace {

TEST(Row, IsOneLineOfJson) {
  const Row one{"rpc",
                "tiny",
                "weft",
                3,
                "0/1",
                "1/1",
                {{"wait", "blocking"}},
                {{"p50_us", 1.5}},
                "line one\nline two"};
  EXPECT_EQ(
      to_json(one),
      R"({"bench":"rpc","case":"tiny","peer":"weft","round":3,"pins":"0/1","threads":"1/1","wait":"blocking",)"
      R"("p50_us":1.5,"error":"line one\nline two"})");
}

TEST(Row, IsComparedByItsFirstFigure) {
  EXPECT_EQ(leading_figure({{"GBps", 1}, {"p99_us", 2}, {"p50_us", 3}}), "p50_us");
  EXPECT_EQ(leading_figure({{"GBps", 1}}), "GBps");
  EXPECT_EQ(leading_figure({}), "");
}

TEST(Row, HeadingsAreReadByPeople) {
  EXPECT_EQ(heading("p50_us"), "p50 us");
  EXPECT_EQ(heading("calls_per_s"), "calls/s");
  EXPECT_EQ(heading("client_allocs_per_call"), "client allocs/call");
  EXPECT_EQ(heading("KiB"), "KiB");
}

}  // namespace
}  // namespace weft::bench::row_test
