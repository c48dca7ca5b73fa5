// ShardLayout: the positions of several parameters in one buffer that is split over the ranks.
//
// The parameters are consecutive in the given order. The buffer has one part for each rank, and all parts
// have the same length. A slice is the range of one parameter in one part. Parameters and parts begin at
// multiples of 16 elements, so that they are aligned for kernels; the elements between them are padding. Pure
// data; the same on all ranks for equal arguments.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::sharded {

struct WEFT_EXPORT ShardLayout {
  struct Slice {
    std::size_t parameter = 0;
    std::int64_t begin = 0, end = 0;  // elements of the flattened parameter
    std::int64_t offset = 0;          // of `begin` in the part
    friend bool operator==(const Slice&, const Slice&) = default;
  };

  // elements: of each parameter. ranks: at least 1.
  ShardLayout(std::span<const std::int64_t> elements, int ranks);

  std::int64_t elements() const { return part * static_cast<std::int64_t>(slices.size()); }

  std::vector<std::int64_t> offsets;  // of the parameters in the buffer
  std::int64_t part = 0;              // elements of a part
  // By rank: its slices that have elements, in the order of the parameters.
  std::vector<std::vector<Slice>> slices;
};

}  // namespace weft::sharded
