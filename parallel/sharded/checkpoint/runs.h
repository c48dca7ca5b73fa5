// Runs: elements of a flattened tensor at equal distances. They are a rank's part of a weight that is split
// along a dimension other than the first.
//
//   const Runs right{.first = 2, .length = 2, .distance = 4};   // the last two of four columns
//   right.element(3) == 7                                       // its fourth element, in row 1
//
// An element has two numbers: its position among the elements of the runs, and its index in the flattened
// tensor. Pure data.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::sharded {

struct WEFT_EXPORT Runs {
  // The runs are `length` elements from `first` on, repeated every `distance` elements.
  std::int64_t first = 0, length = 1, distance = 1;

  // All elements of a tensor.
  static Runs all(std::int64_t elements);

  // Whether the runs fit a tensor with this number of elements: the distance must divide it.
  bool fit(std::int64_t elements) const;
  std::int64_t count(std::int64_t elements) const { return elements / distance * length; }

  std::int64_t element(std::int64_t position) const {
    return first + position / length * distance + position % length;
  }
  // The position of the first element of the runs whose index is at least `element`.
  std::int64_t position_from(std::int64_t element) const;

  friend auto operator<=>(const Runs&, const Runs&) = default;
};
WEFT_CODEC(Runs, first, length, distance)

// Consecutive elements that two selections have in common, by their positions in each.
struct SharedElements {
  std::int64_t to = 0, from = 0, count = 0;
  friend bool operator==(const SharedElements&, const SharedElements&) = default;
};
using Positions = std::pair<std::int64_t, std::int64_t>;  // begin, end

// The elements of the tensor that are in both selections: at the positions `in_to` of `to`, and at the
// positions `in_from` of `from`. Ascending; adjacent ranges are joined.
WEFT_EXPORT std::vector<SharedElements> shared_elements(const Runs& to, Positions in_to, const Runs& from,
                                                        Positions in_from);
// The same for several ranges of positions of `to`, ascending. Removes from `wanted` the positions of the
// elements that it returns.
WEFT_EXPORT std::vector<SharedElements> take_shared(const Runs& to, std::vector<Positions>& wanted,
                                                    const Runs& from, Positions in_from);

}  // namespace weft::sharded
