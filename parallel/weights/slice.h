// Slice: a part of a tensor.
//
//   Slice::rows(0, 4)                     the first four rows
//   Slice{{{1, 8, 16}}}                   columns 8 to 15
//   Slice::flat(100, 200)                 elements 100 to 199 of the flattened tensor
//
// Pure data.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace weft::weights {

struct WEFT_EXPORT Slice {
  // A part of one dimension.
  struct Extent {
    std::int64_t dim, begin, end;  // the indices from `begin` to before `end`
  };
  std::vector<Extent> extents = {};  // empty: the whole tensor
  bool flattened = false;            // the extents are of the flattened tensor

  static Slice rows(std::int64_t begin, std::int64_t end) { return {{{0, begin, end}}}; }
  static Slice flat(std::int64_t begin, std::int64_t end) { return {{{0, begin, end}}, true}; }

  // The elements of the slice as a view of the tensor. If the slice is flattened, a tensor that is not
  // contiguous is copied. invalid_argument, which begins with `what`: the slice is not in the tensor.
  at::Tensor of(const at::Tensor& tensor, const std::string& what) const;
};

}  // namespace weft::weights
