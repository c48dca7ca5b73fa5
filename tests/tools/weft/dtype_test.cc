#include "tools/weft/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/errors.h"

namespace weft::tool::dtype_test {
namespace {

double value_of(const PrintedJson& json) {
  if (json == "NaN") return std::nan("");
  if (json == "Infinity") return HUGE_VAL;
  if (json == "-Infinity") return -HUGE_VAL;
  return json.get<double>();
}
double read(const char* dtype, std::uint32_t bits) {
  return value_of(Dtype::find(dtype)->read(reinterpret_cast<const std::byte*>(&bits)));
}
std::uint32_t written(const char* dtype, double value) {
  std::uint32_t bits = 0;
  Dtype::find(dtype)->write(reinterpret_cast<std::byte*>(&bits), GivenJson(value));
  return bits;
}

// Known values: the formats' definitions (IEEE 754; bfloat16; "FP8 formats for deep learning"; ONNX's
// float8).
TEST(Dtype, ValuesEqualTheDefinitionsOfTheFormats) {
  EXPECT_EQ(read("float16", 0x3c00), 1);
  EXPECT_EQ(read("float16", 0x7bff), 65504);
  EXPECT_NEAR(read("float16", 0x0001), 0x1p-24, 1e-9);  // printed with one digit
  EXPECT_EQ(read("float16", 0xfc00), -HUGE_VAL);
  EXPECT_TRUE(std::isnan(read("float16", 0x7e00)));
  EXPECT_EQ(read("bfloat16", 0x3f80), 1);
  EXPECT_EQ(read("bfloat16", 0xc000), -2);
  EXPECT_EQ(read("float8_e5m2", 0x3c), 1);
  EXPECT_EQ(read("float8_e5m2", 0x7c), HUGE_VAL);
  EXPECT_EQ(written("float8_e5m2", 57344), 0x7bU);
  EXPECT_EQ(read("float8_e4m3fn", 0x38), 1);
  EXPECT_EQ(read("float8_e4m3fn", 0x7e), 448);
  EXPECT_TRUE(std::isnan(read("float8_e4m3fn", 0x7f)));
  EXPECT_TRUE(std::isnan(read("float8_e4m3fn", 0xff)));
  EXPECT_EQ(read("float8_e5m2fnuz", 0x40), 1);
  EXPECT_EQ(written("float8_e5m2fnuz", 57344), 0x7fU);
  EXPECT_TRUE(std::isnan(read("float8_e5m2fnuz", 0x80)));
  EXPECT_EQ(read("float8_e4m3fnuz", 0x40), 1);
  EXPECT_EQ(read("float8_e4m3fnuz", 0x7f), 240);
  EXPECT_TRUE(std::isnan(read("float8_e4m3fnuz", 0x80)));
}

TEST(Dtype, EveryPrintedNumberIsReadBackExactly) {
  for (const char* name :
       {"float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float16", "bfloat16"}) {
    const std::uint32_t end = Dtype::find(name)->bytes() == 1 ? 1 << 8 : 1 << 16;
    for (std::uint32_t bits = 0; bits < end; ++bits) {
      const double value = read(name, bits);
      if (!std::isnan(value)) {
        ASSERT_EQ(written(name, value), bits) << name;
      }
    }
  }
}

TEST(Dtype, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(written("float16", 1 + 0x1p-11), 0x3c00U);  // half way to the next number: the even one
  EXPECT_EQ(written("float16", 1 + 3 * 0x1p-11), 0x3c02U);
  EXPECT_EQ(written("float16", 1 + 0x1.02p-11), 0x3c01U);
  EXPECT_EQ(written("float16", 2 - 0x1p-12), 0x4000U);  // rounds up to the next exponent
  EXPECT_EQ(written("float16", 0x1p-25), 0U);           // half of the smallest number: zero is even
  EXPECT_EQ(written("float16", 0x1.8p-24), 2U);
  EXPECT_EQ(written("float16", -0x1p-26), 0x8000U);
  EXPECT_EQ(written("float16", 0x1.ffcp-15), 0x0400U);  // a subnormal becomes normal
  EXPECT_EQ(written("float16", 65519), 0x7bffU);
  EXPECT_EQ(written("float8_e4m3fn", 463), 0x7eU);
  EXPECT_EQ(written("float8_e5m2fnuz", -1e-9), 0U);  // there is no -0
  EXPECT_EQ(test::kind_of([] { return written("float16", 65520); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([] { return written("float8_e4m3fn", 465); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(test::kind_of([] { return written("float32", 1e39); }), rpc::ErrorKind::invalid_argument);
}

TEST(Dtype, FloatsAreEncodedAsByTheCompiler) {
  for (const double value : {0.1, 1e-40, 3.4028234e38, -1.0 / 3, 16777217.0, 1e-46}) {
    const float expected = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &expected, sizeof bits);
    EXPECT_EQ(written("float32", value), bits) << value;
  }
}

TEST(Dtype, NumbersArePrintedWithTheFewestDigits) {
  std::uint32_t bits = written("bfloat16", 0.1);
  EXPECT_EQ(Dtype::find("bfloat16")->read(reinterpret_cast<std::byte*>(&bits)), 0.1);
  EXPECT_EQ(real_json(0.1F), 0.1);
  EXPECT_EQ(real_json(16777216.0F), 16777216.0);
}

TEST(Dtype, UnknownNamesAreRefused) {
  EXPECT_EQ(Dtype::find("float"), nullptr);
  EXPECT_EQ(Dtype::find(""), nullptr);
  EXPECT_EQ(Dtype::find("complex64")->number_bytes(), 4U);
}

}  // namespace
}  // namespace weft::tool::dtype_test
