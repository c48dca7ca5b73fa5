// ReduceOp: combines the values of several ranks.
//
// sum, avg (the sum divided by the number of ranks; for integers, truncated towards zero), product, min and
// max (NaN if any rank has NaN), bit_and, bit_or, bit_xor (for integers and bool), and premul_sum. For bool,
// sum and max are `or`, product and min are `and`. Sums and products of integers wrap in their type. avg adds
// narrower integers in 64 bits; only on devices, NCCL adds them in their type. A value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <string>

namespace weft::collectives {

struct WEFT_EXPORT ReduceOp {
  // premul_sum: the sum of values that each rank first multiplies by `factor` (floating point and complex).
  enum class Kind : std::uint8_t { sum, avg, product, min, max, bit_and, bit_or, bit_xor, premul_sum };

  Kind kind = Kind::sum;  // equal on all ranks
  double factor = 1;      // of premul_sum; may differ between ranks

  static const ReduceOp sum, avg, product, min, max, bit_and, bit_or, bit_xor;
  // factor: of this rank. The collective fails with `unsupported` for types other than floating point and
  // complex.
  static constexpr ReduceOp premul_sum(double factor) { return {Kind::premul_sum, factor}; }

  std::string name() const;  // "sum", "avg", …
};

inline constexpr ReduceOp ReduceOp::sum{Kind::sum};
inline constexpr ReduceOp ReduceOp::avg{Kind::avg};
inline constexpr ReduceOp ReduceOp::product{Kind::product};
inline constexpr ReduceOp ReduceOp::min{Kind::min};
inline constexpr ReduceOp ReduceOp::max{Kind::max};
inline constexpr ReduceOp ReduceOp::bit_and{Kind::bit_and};
inline constexpr ReduceOp ReduceOp::bit_or{Kind::bit_or};
inline constexpr ReduceOp ReduceOp::bit_xor{Kind::bit_xor};

}  // namespace weft::collectives
