#include "bench/harness/meter.h"

#include <gtest/gtest.h>

namespace weft::bench::meter_test {
namespace {

TEST(Meter, IgnoresTheWarmUpAndLastsForAFewCalls) {
  RateMeter meter({.warm_up = std::chrono::nanoseconds{0}, .duration = std::chrono::nanoseconds{0}});
  EXPECT_TRUE(meter.count(1));
  EXPECT_TRUE(meter.count(2));  // warm
  EXPECT_TRUE(meter.count(2));
  EXPECT_FALSE(meter.count(1));
}

}  // namespace
}  // namespace weft::bench::meter_test
