#include <weft/parallel/collectives/nccl/internal/types.h>
#include <weft/rpc/core/error.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/errors.h"

namespace weft::collectives::nccl::testing {
namespace types_test {

using c10::ScalarType;

const std::vector<ReduceOp> all_ops{ReduceOp::sum,    ReduceOp::avg,     ReduceOp::product,
                                    ReduceOp::min,    ReduceOp::max,     ReduceOp::bit_and,
                                    ReduceOp::bit_or, ReduceOp::bit_xor, ReduceOp::premul_sum(2)};

// Returns the reductions that NCCL supports: "sum avg product …".
std::string supported(ScalarType type) {
  std::string names;
  for (const ReduceOp& op : all_ops) {
    try {
      (void)map_reduction(type, op);
      names += (names.empty() ? "" : " ") + op.name();
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), rpc::ErrorKind::unsupported) << error.what();
    }
  }
  return names;
}

TEST(NcclTypes, NcclReducesTheseTypes) {
  const std::string whole = "sum avg product min max", real = whole + " premul_sum";
  for (const ScalarType type : {ScalarType::Char, ScalarType::Byte, ScalarType::Int, ScalarType::UInt32,
                                ScalarType::Long, ScalarType::UInt64})
    EXPECT_EQ(supported(type), whole) << c10::toString(type);
  for (const ScalarType type : {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double,
                                ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2})
    EXPECT_EQ(supported(type), real) << c10::toString(type);
  for (const ScalarType type : {ScalarType::ComplexHalf, ScalarType::ComplexFloat, ScalarType::ComplexDouble})
    EXPECT_EQ(supported(type), "sum avg premul_sum") << c10::toString(type);
  EXPECT_EQ(supported(ScalarType::Bool), "sum product min max bit_and bit_or");
  for (const ScalarType type : {ScalarType::Short, ScalarType::UInt16, ScalarType::Float8_e4m3fnuz,
                                ScalarType::Float8_e5m2fnuz, ScalarType::QInt8})
    EXPECT_EQ(supported(type), "") << c10::toString(type);
}

TEST(NcclTypes, EachTypeIsMapped) {
  const auto type_of = [](ScalarType type) { return map_reduction(type, ReduceOp::sum).type; };
  EXPECT_EQ(type_of(ScalarType::Char), DataType::int8);
  EXPECT_EQ(type_of(ScalarType::Byte), DataType::uint8);
  EXPECT_EQ(type_of(ScalarType::Int), DataType::int32);
  EXPECT_EQ(type_of(ScalarType::UInt32), DataType::uint32);
  EXPECT_EQ(type_of(ScalarType::Long), DataType::int64);
  EXPECT_EQ(type_of(ScalarType::UInt64), DataType::uint64);
  EXPECT_EQ(type_of(ScalarType::Half), DataType::float16);
  EXPECT_EQ(type_of(ScalarType::BFloat16), DataType::bfloat16);
  EXPECT_EQ(type_of(ScalarType::Float), DataType::float32);
  EXPECT_EQ(type_of(ScalarType::Double), DataType::float64);
  EXPECT_EQ(type_of(ScalarType::Float8_e4m3fn), DataType::float8_e4m3);
  EXPECT_EQ(type_of(ScalarType::Float8_e5m2), DataType::float8_e5m2);
  EXPECT_EQ(type_of(ScalarType::ComplexFloat), DataType::float32);
  EXPECT_EQ(map_reduction(ScalarType::ComplexFloat, ReduceOp::sum).per_element, 2U);
  EXPECT_EQ(map_reduction(ScalarType::Float, ReduceOp::sum).per_element, 1U);
}

TEST(NcclTypes, OfBoolSumIsOrAndProductIsAnd) {
  EXPECT_EQ(map_reduction(ScalarType::Bool, ReduceOp::sum).op, RedOp::max);
  EXPECT_EQ(map_reduction(ScalarType::Bool, ReduceOp::product).op, RedOp::min);
  EXPECT_EQ(map_reduction(ScalarType::Float, ReduceOp::product).op, RedOp::product);
  EXPECT_EQ(map_reduction(ScalarType::Long, ReduceOp::avg).op, RedOp::avg);
}

TEST(NcclTypes, AFactorIsOfTheTypesOwnBits) {
  const auto factor = [](ScalarType type, auto value) {
    std::memcpy(&value, map_reduction(type, ReduceOp::premul_sum(0.75)).factor->bits.data(), sizeof value);
    return static_cast<double>(value);
  };
  EXPECT_EQ(factor(ScalarType::Half, c10::Half()), 0.75);
  EXPECT_EQ(factor(ScalarType::BFloat16, c10::BFloat16()), 0.75);
  EXPECT_EQ(factor(ScalarType::Float, 0.0F), 0.75);
  EXPECT_EQ(factor(ScalarType::Double, 0.0), 0.75);
  EXPECT_EQ(factor(ScalarType::ComplexFloat, 0.0F), 0.75);
}

TEST(NcclTypes, RefusalsNameTypeAndOperation) {
  EXPECT_EQ(
      test::message_of([] { return map_reduction(ScalarType::Short, ReduceOp::sum).type; }),
      "NCCL: sum of int16: expected bool, int8, int32, int64, uint8, uint32, uint64, float16, bfloat16, "
      "float32, float64, float8_e4m3fn, float8_e5m2, complex32, complex64 or complex128");
  EXPECT_EQ(test::message_of([] { return map_reduction(ScalarType::Int, ReduceOp::bit_xor).type; }),
            "NCCL: bit_xor of int32: expected sum, avg, product, min or max");
}

}  // namespace types_test
}  // namespace weft::collectives::nccl::testing
