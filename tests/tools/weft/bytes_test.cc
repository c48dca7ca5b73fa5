#include "tools/weft/bytes.h"

#include <gtest/gtest.h>

#include "tools/weft/errors.h"

namespace weft::tool::bytes_test {
namespace {

TEST(Bytes, AreReadInTheirUnit) {
  EXPECT_EQ(parse_bytes("512"), 512);
  EXPECT_EQ(parse_bytes("1e9"), 1e9);
  EXPECT_EQ(parse_bytes("12.5GB"), 12.5e9);
  EXPECT_EQ(parse_bytes("3kB"), 3000);
  EXPECT_EQ(parse_bytes("40GiB"), 40.0 * (1 << 30));
  EXPECT_EQ(parse_bytes("0.5MiB"), 0.5 * (1 << 20));
  EXPECT_EQ(parse_bytes("7B"), 7);
}

TEST(Bytes, RefusesOtherTexts) {
  for (const char* text : {"", "GB", "-1GB", "5 GB", "5G", "nan", "inf", "1e999", "5GBs", "0x10"})
    EXPECT_THROW((void)parse_bytes(text), UsageError) << text;
}

TEST(Bytes, AreShownWithTwoToFourDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(250.0 * (1 << 20)), "250 MiB");
  EXPECT_EQ(bytes_text(40.0 * (1 << 30)), "40.0 GiB");
}

}  // namespace
}  // namespace weft::tool::bytes_test
