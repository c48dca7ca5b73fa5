#include <weft/parallel/collectives/operation/internal/reduction.h>
#include <weft/rpc/core/error.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::collectives::testing {
namespace reduction_test {

using Kind = ReduceOp::Kind;

const std::vector<c10::ScalarType> integers{torch::kUInt8, torch::kInt8,   torch::kInt16,  torch::kInt32,
                                            torch::kInt64, torch::kUInt16, torch::kUInt32, torch::kUInt64};
const std::vector<c10::ScalarType> narrow{torch::kHalf,     torch::kBFloat16,     at::kFloat8_e4m3fn,
                                          at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz};
// A prime, and larger than a block that is widened at a time.
constexpr std::int64_t count = 2311;

const std::byte* bytes(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}
std::byte* bytes(at::Tensor& tensor) { return static_cast<std::byte*>(tensor.mutable_data_ptr()); }

// Values that every type represents exactly, as it does sums and products of a few of them.
at::Tensor small_values(c10::ScalarType type, std::uint64_t seed) {
  torch::manual_seed(seed);
  const bool natural = type == torch::kBool || c10::isIntegralType(type, true);
  const auto numbers =
      torch::randint(natural ? 0 : -3, type == torch::kBool ? 2 : 4, {count}, torch::kDouble);
  if (!c10::isComplexType(type)) return numbers.to(type);
  return torch::complex(numbers, numbers.flip(0)).to(type);
}

at::Tensor combined(ReduceOp op, const at::Tensor& left, const at::Tensor& right) {
  const Reduction reduction(op, left.scalar_type());
  auto accumulator = torch::empty({count}, reduction.accumulates_wide() ? torch::kFloat : left.scalar_type());
  EXPECT_EQ(reduction.accumulator_size(), accumulator.element_size());
  reduction.combine(bytes(accumulator), {bytes(left), false}, {bytes(right), false}, count);
  auto output = torch::empty_like(left);
  reduction.finish(bytes(output), bytes(accumulator), count, 2);
  return output;
}

at::Tensor oracle(ReduceOp op, const at::Tensor& left, const at::Tensor& right) {
  const auto type = left.scalar_type();
  const auto wide = c10::isComplexType(type) ? torch::kComplexDouble : torch::kDouble;
  const auto a = left.to(wide), b = right.to(wide);
  switch (op.kind) {
    case Kind::product:
      return (a * b).to(type);
    case Kind::min:
      return torch::minimum(a, b).to(type);
    case Kind::max:
      return torch::maximum(a, b).to(type);
    case Kind::bit_and:
      return torch::bitwise_and(left.to(torch::kLong), right.to(torch::kLong)).to(type);
    case Kind::bit_or:
      return torch::bitwise_or(left.to(torch::kLong), right.to(torch::kLong)).to(type);
    case Kind::bit_xor:
      return torch::bitwise_xor(left.to(torch::kLong), right.to(torch::kLong)).to(type);
    case Kind::avg: {
      const auto half = (a + b) / 2;
      return (c10::isIntegralType(type, true) ? half.trunc() : half).to(type);
    }
    default:
      return (a + b).to(type);
  }
}

void expect_same(const at::Tensor& given, const at::Tensor& expected) {
  ASSERT_EQ(given.scalar_type(), expected.scalar_type());
  const auto wide = given.is_complex() ? torch::kComplexDouble : torch::kDouble;
  EXPECT_TRUE(torch::equal(given.to(wide), expected.to(wide))) << given.scalar_type();
}

void expect_equals_libtorch(ReduceOp op, c10::ScalarType type) {
  SCOPED_TRACE(::testing::Message() << op.name() << " of " << c10::toString(type));
  const auto left = small_values(type, 1), right = small_values(type, 2);
  expect_same(combined(op, left, right), oracle(op, left, right));
}

TEST(Reduction, OfIntegersEqualsLibTorchs) {
  for (const auto type : integers) {
    for (const auto& op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max,
                           ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
      expect_equals_libtorch(op, type);
    }
  }
}

TEST(Reduction, OfFloatingPointEqualsLibTorchs) {
  auto types = narrow;
  types.insert(types.end(), {torch::kFloat, torch::kDouble});
  for (const auto type : types) {
    for (const auto& op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      expect_equals_libtorch(op, type);
    }
  }
  for (const auto type : {torch::kComplexFloat, torch::kComplexDouble}) {
    for (const auto& op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product}) expect_equals_libtorch(op, type);
  }
}

TEST(Reduction, OfBoolIsAndOrAndExclusiveOr) {
  const auto left = small_values(torch::kBool, 1), right = small_values(torch::kBool, 2);
  expect_same(combined(ReduceOp::sum, left, right), torch::logical_or(left, right));
  expect_same(combined(ReduceOp::max, left, right), torch::logical_or(left, right));
  expect_same(combined(ReduceOp::bit_or, left, right), torch::logical_or(left, right));
  expect_same(combined(ReduceOp::product, left, right), torch::logical_and(left, right));
  expect_same(combined(ReduceOp::min, left, right), torch::logical_and(left, right));
  expect_same(combined(ReduceOp::bit_and, left, right), torch::logical_and(left, right));
  expect_same(combined(ReduceOp::bit_xor, left, right), torch::logical_xor(left, right));
}

TEST(Reduction, OfIntegersWrapsAround) {
  for (const auto type : {torch::kInt8, torch::kInt32, torch::kInt64}) {
    const auto largest = torch::full({count},
                                     type == torch::kInt8    ? 127
                                     : type == torch::kInt32 ? std::numeric_limits<std::int32_t>::max()
                                                             : std::numeric_limits<std::int64_t>::max(),
                                     type);
    expect_same(combined(ReduceOp::sum, largest, largest), torch::full({count}, -2, type));
    expect_same(combined(ReduceOp::product, largest, largest), torch::ones({count}, type));
  }
}

// The exact value is halfway between two values of the type. Rounding twice loses both ones. Rounding once
// keeps them.
TEST(Reduction, OfNarrowTypesIsRoundedOnce) {
  const std::vector<std::pair<c10::ScalarType, double>> cases{
      {torch::kHalf, 2048},       {torch::kBFloat16, 256}, {at::kFloat8_e4m3fn, 16},
      {at::kFloat8_e4m3fnuz, 16}, {at::kFloat8_e5m2, 8},   {at::kFloat8_e5m2fnuz, 8}};
  for (const auto& [type, large] : cases) {
    const Reduction reduction(ReduceOp::sum, type);
    const auto a = torch::full({count}, large).to(type), one = torch::ones({count}).to(type);
    auto accumulator = torch::empty({count});
    reduction.combine(bytes(accumulator), {bytes(a), false}, {bytes(one), false}, count);
    reduction.combine(bytes(accumulator), {bytes(one), false}, {bytes(accumulator), true}, count);
    auto output = torch::empty({count}, type);
    reduction.finish(bytes(output), bytes(accumulator), count, 3);
    expect_same(output, torch::full({count}, large + 2).to(type));
    const auto twice = (a.to(torch::kFloat) + 1).to(type).to(torch::kFloat) + 1;
    EXPECT_FALSE(torch::equal(twice.to(type).to(torch::kFloat), output.to(torch::kFloat)));
  }
}

// Converts every 16-bit value to float and back. Values between two of them are rounded to even.
TEST(Reduction, WidensAndRoundsAsLibTorchDoes) {
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    const Reduction reduction(ReduceOp::max, type);
    const auto all = torch::arange(0, 65536, torch::kInt32).to(torch::kInt16).view(type);
    auto wide = torch::empty({65536});
    reduction.combine(bytes(wide), {bytes(all), false}, {bytes(all), false}, 65536);
    EXPECT_TRUE(torch::allclose(wide, all.to(torch::kFloat), 0, 0, /*equal_nan=*/true));

    torch::manual_seed(7);
    const auto floats = torch::randint(0, std::numeric_limits<std::int32_t>::max(), {100000}, torch::kInt64)
                            .to(torch::kInt32)
                            .view(torch::kFloat);
    const auto halfway =
        torch::cat({floats, -floats, (all.to(torch::kFloat) + all.roll(1).to(torch::kFloat)) / 2});
    auto rounded = torch::empty({halfway.numel()}, type);
    reduction.finish(bytes(rounded), bytes(halfway), halfway.numel(), 1);
    EXPECT_TRUE(torch::allclose(rounded.to(torch::kFloat), halfway.to(type).to(torch::kFloat), 0, 0, true));
  }
}

TEST(Reduction, OfMinAndMaxIsNaNWhereAnyIs) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    const auto one = torch::ones({count}).to(type), none = torch::full({count}, nan).to(type);
    for (const auto& op : {ReduceOp::min, ReduceOp::max}) {
      EXPECT_TRUE(combined(op, one, none).isnan().all().item<bool>());
      EXPECT_TRUE(combined(op, none, one).isnan().all().item<bool>());
    }
  }
}

TEST(Reduction, MayWriteOverAnOperand) {
  for (const auto type : {torch::kFloat, torch::kHalf}) {
    const Reduction reduction(ReduceOp::sum, type);
    const auto values = small_values(type, 3);
    auto accumulator = small_values(type, 4).to(torch::kFloat);
    const auto expected = accumulator + values.to(torch::kFloat);
    auto copy = accumulator.clone();
    reduction.combine(bytes(accumulator), {bytes(accumulator), true}, {bytes(values), false}, count);
    EXPECT_TRUE(torch::equal(accumulator, expected));
    reduction.combine(bytes(copy), {bytes(values), false}, {bytes(copy), true}, count);
    EXPECT_TRUE(torch::equal(copy, expected));
  }
}

TEST(Reduction, MultipliesByAFactorFirst) {
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kComplexFloat}) {
    const Reduction reduction(ReduceOp::premul_sum(0.5), type);
    ASSERT_TRUE(reduction.premultiplies());
    const auto values = small_values(type, 5);
    auto scaled = torch::empty_like(values);
    reduction.premultiply(bytes(scaled), bytes(values), count);
    expect_same(scaled, values * 0.5);
  }
}

TEST(Reduction, WithoutADefinitionIsRefused) {
  const std::vector<std::pair<ReduceOp, c10::ScalarType>> meaningless{
      {ReduceOp::min, torch::kComplexFloat},
      {ReduceOp::max, torch::kComplexDouble},
      {ReduceOp::bit_and, torch::kFloat},
      {ReduceOp::bit_or, torch::kHalf},
      {ReduceOp::bit_xor, torch::kComplexFloat},
      {ReduceOp::avg, torch::kBool},
      {ReduceOp::premul_sum(2), torch::kInt32},
      {ReduceOp::premul_sum(2), torch::kBool},
      {ReduceOp::sum, torch::kQInt8}};
  for (const auto& [op, type] : meaningless) {
    try {
      const Reduction reduction(op, type);
      FAIL() << op.name() << " of " << c10::toString(type);
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), rpc::ErrorKind::unsupported);
      EXPECT_NE(std::string(error.what()).find(op.name()), std::string::npos) << std::string(error.what());
    }
  }
}

}  // namespace reduction_test
}  // namespace weft::collectives::testing
