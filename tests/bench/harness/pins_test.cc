#include "bench/harness/pins.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace weft::bench::pins_test {
namespace {

TEST(Pins, ReadAsTheyAreWritten) {
  EXPECT_EQ(Pins::parse("0-2,5/3").text(), "0,1,2,5/3");
  EXPECT_EQ(Pins::parse("none").text(), "none");
  EXPECT_EQ(Pins::one_each({4, 6}, 3).text(), "4/6/4");
  for (const char* wrong : {"", "a", "0//1", "-1", "0-", "1,"})
    EXPECT_THROW(Pins::parse(wrong), std::invalid_argument) << wrong;
}

}  // namespace
}  // namespace weft::bench::pins_test
