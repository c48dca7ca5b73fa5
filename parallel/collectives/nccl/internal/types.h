// map_reduction: converts LibTorch's element types and weft's reductions to NCCL's. Pure functions.
//
// Operations that only move data use bytes, for any type. Reductions support the types that NCCL reduces:
// int8, int32, int64, uint8, uint32, uint64, float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2
// (the two float8 types need a device of compute capability 9.0), bool, and sums of complex numbers, as
// pairs. Unlike in weft's own reductions (reduction.h), sums of 16 and 8 bits are rounded as NCCL rounds
// them, and its min and max may ignore NaN. Other types and operations fail with unsupported; the error names
// both.
#pragma once

#include <weft/parallel/collectives/nccl/internal/abi.h>
#include <weft/parallel/collectives/operation/reduce_op.h>

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <optional>

namespace weft::collectives::nccl {

// The factor of a premul_sum, as the bits of a value of the element type.
struct Factor {
  alignas(8) std::array<std::byte, 8> bits{};
};

// A reduction as NCCL's calls describe it.
struct MappedReduction {
  DataType type = DataType::float32;  // the type of NCCL's elements
  RedOp op = RedOp::sum;              // used if there is no factor
  std::size_t per_element = 1;        // the number of NCCL's elements in a tensor's element
  std::optional<Factor> factor;       // of premul_sum
};

// Throws unsupported for a type or an operation that NCCL does not reduce.
WEFT_EXPORT MappedReduction map_reduction(c10::ScalarType type, ReduceOp op);

}  // namespace weft::collectives::nccl
