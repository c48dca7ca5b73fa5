// Reduction: a ReduceOp on elements of one dtype, in this host's memory.
//
// Values are reduced in accumulators. For floating-point types of 16 and 8 bits, accumulators are float32, so
// that the values of P ranks are rounded once and not P times. For other types, accumulators have the type
// itself. Memory is plain bytes, aligned as the types require; the accumulator may be one of the operands. A
// value; thread-safe.
#pragma once

#include <weft/parallel/collectives/operation/reduce_op.h>

#include <c10/core/ScalarType.h>

#include <cstddef>

namespace weft::collectives {

// Convert between float32 and a floating-point type of 16 or 8 bits, with rounding to nearest even.
WEFT_EXPORT void widen(c10::ScalarType from, float* to, const std::byte* narrow, std::size_t n);
WEFT_EXPORT void narrow(c10::ScalarType to, std::byte* narrow, const float* from, std::size_t n);

class WEFT_EXPORT Reduction {
 public:
  // Throws unsupported if the operation is not defined for the type.
  Reduction(ReduceOp op, c10::ScalarType type);

  c10::ScalarType type() const { return type_; }  // of the elements
  // Bytes of an element, and of an accumulator.
  std::size_t item_size() const { return item_size_; }
  std::size_t accumulator_size() const { return accumulator_size_; }
  // Whether accumulators are float32 and elements are narrower.
  bool accumulates_wide() const { return wide_; }
  // Whether finish() does more than copy.
  bool finishes() const { return wide_ || op_.kind == ReduceOp::Kind::avg; }
  // Whether each rank's input must first be scaled with premultiply().
  bool premultiplies() const { return op_.kind == ReduceOp::Kind::premul_sum; }

  // n elements, or n accumulators.
  struct Operand {
    const std::byte* data;
    bool accumulated;  // the elements are accumulators; false: they have the type itself
  };
  // accumulator[i] = left[i] ⊕ right[i]. The order of operands is kept, so equal calls give equal bits.
  void combine(std::byte* accumulator, Operand left, Operand right, std::size_t n) const;
  // output[i] = the accumulator, divided by `ranks` for avg, rounded to nearest even.
  void finish(std::byte* output, const std::byte* accumulator, std::size_t n, int ranks) const;
  // output[i] = input[i] × the factor of premul_sum, of n elements of the type.
  void premultiply(std::byte* output, const std::byte* input, std::size_t n) const;

 private:
  ReduceOp op_;
  c10::ScalarType type_;
  bool wide_;
  std::size_t item_size_, accumulator_size_;
};

}  // namespace weft::collectives
