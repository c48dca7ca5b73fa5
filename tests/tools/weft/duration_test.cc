#include "tools/weft/duration.h"

#include <gtest/gtest.h>

#include "tools/weft/errors.h"

namespace weft::tool::duration_test {
namespace {

using namespace std::chrono_literals;

TEST(Duration, IsReadInItsUnit) {
  EXPECT_EQ(parse_duration("5s"), 5s);
  EXPECT_EQ(parse_duration("5"), 5s);
  EXPECT_EQ(parse_duration("1.5s"), 1500ms);
  EXPECT_EQ(parse_duration("300ms"), 300ms);
  EXPECT_EQ(parse_duration("20us"), 20us);
  EXPECT_EQ(parse_duration("7ns"), 7ns);
  EXPECT_EQ(parse_duration("2m"), 2min);
  EXPECT_EQ(parse_duration("2min"), 2min);
  EXPECT_EQ(parse_duration("1h"), 1h);
  EXPECT_EQ(parse_duration("0"), 0s);
  EXPECT_EQ(parse_duration("999999999999h"), std::chrono::nanoseconds::max());
}

TEST(Duration, RefusesMalformedTexts) {
  for (const char* text : {"", "s", "-1s", "5 s", "5x", "nan", "inf", "1e3s", "5ss", "0x10"})
    EXPECT_THROW((void)parse_duration(text), UsageError) << text;
}

TEST(Duration, IsShownWithThreeDigits) {
  EXPECT_EQ(text_of(0ns), "0.000 ms");
  EXPECT_EQ(text_of(123us), "0.123 ms");
  EXPECT_EQ(text_of(1234us), "1.23 ms");
  EXPECT_EQ(text_of(12345us), "12.3 ms");
  EXPECT_EQ(text_of(123456us), "123 ms");
  EXPECT_EQ(text_of(1500ms), "1.50 s");
  EXPECT_EQ(text_of(90s), "90.0 s");
  EXPECT_EQ(text_of(150s), "2 min 30 s");
  EXPECT_EQ(text_of(3h + 12min + 5s), "3 h 12 min");
  EXPECT_EQ(text_of(50h), "2 d 2 h");
}

}  // namespace
}  // namespace weft::tool::duration_test
