// plan_writers: which rank writes which slices of a state.
//
// If several ranks have the same range of a tensor, the rank that has the fewest bytes to write so far writes
// it, or the first of these ranks (SlicedTensor::of_first_rank). A pure function; the same result for equal
// arguments.
#pragma once

#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

// The part of a tensor that a rank has.
struct SliceRange {
  std::string name;
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::string dtype;
  std::int64_t begin = 0, end = 0;  // elements of the flattened tensor
  std::optional<Runs> runs = {};    // set: begin and end are positions in these runs
  std::int64_t item_size = 1;       // bytes of an element
  bool of_first_rank = false;
};
WEFT_CODEC(SliceRange, name, sizes, dtype, begin, end, runs, item_size, of_first_rank)

// What a rank has of a tensor.
WEFT_EXPORT SliceRange range_of(const std::string& name, const SlicedTensor& tensor);

// ranks: the slices of each rank. Returns the names of the tensors that each rank writes. invalid_argument,
// which names the tensor and the rank: ranks have different sizes or dtypes for one name, or runs at
// different distances; a range is not in its tensor; or no rank has some of a tensor's elements.
WEFT_EXPORT std::vector<std::vector<std::string>> plan_writers(
    const std::vector<std::vector<SliceRange>>& ranks);

}  // namespace weft::sharded
