#include <weft/parallel/collectives/nccl/internal/types.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/dtype.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <cstring>

#include <algorithm>
#include <iterator>

namespace weft::collectives::nccl {
namespace {

using c10::ScalarType;
using Kind = ReduceOp::Kind;

struct Mapped {
  ScalarType from;
  DataType type;
  std::size_t per_element;
};

std::optional<Mapped> map_type(ScalarType type) {
  static constexpr Mapped types[] = {{ScalarType::Char, DataType::int8, 1},
                                     {ScalarType::Byte, DataType::uint8, 1},
                                     {ScalarType::Bool, DataType::uint8, 1},
                                     {ScalarType::Int, DataType::int32, 1},
                                     {ScalarType::UInt32, DataType::uint32, 1},
                                     {ScalarType::Long, DataType::int64, 1},
                                     {ScalarType::UInt64, DataType::uint64, 1},
                                     {ScalarType::Half, DataType::float16, 1},
                                     {ScalarType::BFloat16, DataType::bfloat16, 1},
                                     {ScalarType::Float, DataType::float32, 1},
                                     {ScalarType::Double, DataType::float64, 1},
                                     {ScalarType::Float8_e4m3fn, DataType::float8_e4m3, 1},
                                     {ScalarType::Float8_e5m2, DataType::float8_e5m2, 1},
                                     {ScalarType::ComplexHalf, DataType::float16, 2},
                                     {ScalarType::ComplexFloat, DataType::float32, 2},
                                     {ScalarType::ComplexDouble, DataType::float64, 2}};
  const auto* const found = std::find_if(std::begin(types), std::end(types),
                                         [type](const Mapped& each) { return each.from == type; });
  return found == std::end(types) ? std::nullopt : std::optional(*found);
}

std::optional<RedOp> map_op(ScalarType type, Kind kind) {
  if (type == ScalarType::Bool) {  // bytes of 0 and 1
    switch (kind) {
      case Kind::sum:
      case Kind::max:
      case Kind::bit_or:
        return RedOp::max;
      case Kind::product:
      case Kind::min:
      case Kind::bit_and:
        return RedOp::min;
      default:
        return std::nullopt;
    }
  }
  const bool complex = c10::isComplexType(type);
  switch (kind) {
    case Kind::sum:
      return RedOp::sum;
    case Kind::avg:
      return RedOp::avg;
    case Kind::product:
      return complex ? std::nullopt : std::optional(RedOp::product);
    case Kind::min:
      return complex ? std::nullopt : std::optional(RedOp::min);
    case Kind::max:
      return complex ? std::nullopt : std::optional(RedOp::max);
    default:
      return std::nullopt;
  }
}

template <class T>
Factor bits_of(T value) {
  Factor factor;
  std::memcpy(factor.bits.data(), &value, sizeof value);
  return factor;
}

std::optional<Factor> map_factor(DataType type, double value) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case DataType::float16:
      return bits_of(c10::Half(narrow));
    case DataType::bfloat16:
      return bits_of(c10::BFloat16(narrow));
    case DataType::float32:
      return bits_of(narrow);
    case DataType::float64:
      return bits_of(value);
    case DataType::float8_e4m3:
      return bits_of(c10::Float8_e4m3fn(narrow));
    case DataType::float8_e5m2:
      return bits_of(c10::Float8_e5m2(narrow));
    default:
      return std::nullopt;
  }
}

}  // namespace

MappedReduction map_reduction(ScalarType type, ReduceOp op) {
  const auto refuse = [&](const char* why) {
    throw rpc::Error(rpc::ErrorKind::unsupported,
                     "NCCL: " + op.name() + " of " + std::string(tensor::dtype_name(type)) + ": " + why);
  };
  const auto mapped = map_type(type);
  if (!mapped)
    refuse(
        "expected bool, int8, int32, int64, uint8, uint32, uint64, float16, bfloat16, float32, float64, "
        "float8_e4m3fn, float8_e5m2, complex32, complex64 or complex128");
  MappedReduction reduction{mapped->type, RedOp::sum, mapped->per_element, std::nullopt};
  if (op.kind == Kind::premul_sum) {
    reduction.factor = map_factor(mapped->type, op.factor);
    if (!reduction.factor) refuse("expected a floating-point or complex type");
    return reduction;
  }
  const auto mapped_op = map_op(type, op.kind);
  if (!mapped_op)
    refuse(type == ScalarType::Bool   ? "expected sum, product, min, max, bit_and or bit_or"
           : c10::isComplexType(type) ? "expected sum, avg or premul_sum"
                                      : "expected sum, avg, product, min or max");
  reduction.op = *mapped_op;
  return reduction;
}

}  // namespace weft::collectives::nccl
