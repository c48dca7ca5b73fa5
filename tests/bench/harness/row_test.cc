#include "bench/harness/row.h"

#include <gtest/gtest.h>

namespace weft::bench {
namespace {

TEST(Row, is_one_line_of_json) {
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

}  // namespace
}  // namespace weft::bench
