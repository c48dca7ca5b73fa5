#include "bench/harness/schedule.h"

#include <gtest/gtest.h>

namespace weft::bench::schedule_test {
namespace {

TEST(Schedule, EveryContenderOnceARoundAndAnotherFirst) {
  const std::vector<Turn> expected{{1, 0, 0}, {1, 0, 1}, {1, 1, 0}, {2, 0, 1}, {2, 0, 0}, {2, 1, 0}};
  EXPECT_EQ(interleave({2, 1}, 2), expected);
}

}  // namespace
}  // namespace weft::bench::schedule_test
