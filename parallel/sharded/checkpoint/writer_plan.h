// plan_writers: which rank writes which slices of a state.
//
// Where several ranks have the same range of a tensor, one of them writes it: the one with the least to write
// so far. Pure data; the same result for equal arguments.
#pragma once

#include <weft/parallel/sharded/checkpoint/runs.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

// What a rank has of a tensor.
struct SliceRange {
  std::string name;
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::string dtype;
  std::int64_t begin = 0, end = 0;  // elements of the flattened tensor
  std::optional<Runs> runs = {};    // of its elements that these are positions in
};
WEFT_CODEC(SliceRange, name, sizes, dtype, begin, end, runs)

// ranks: the slices of each rank. Gives the names of the tensors that each rank writes. invalid_argument,
// naming the tensor and the rank, where ranks have different sizes or dtypes for one name, or runs at
// different distances, where a range is not in its tensor, or where no rank has some of a tensor's elements.
WEFT_EXPORT std::vector<std::vector<std::string>> plan_writers(
    const std::vector<std::vector<SliceRange>>& ranks);

}  // namespace weft::sharded
