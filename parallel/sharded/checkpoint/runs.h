// Runs: elements of a flattened tensor at equal distances, as a rank has them of a weight that is split along
// any other dimension than the first one.
//
//   const Runs right{.first = 2, .length = 2, .distance = 4};   // the last two of four columns
//   right.element(3) == 7                                       // its fourth element, in row 1
//
// An element has two numbers: its position among the elements of the runs, and its place in the whole tensor.
// Both count in the same order. Pure data.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::sharded {

struct WEFT_EXPORT Runs {
  // `length` elements from `first` on, and again after each `distance` elements.
  std::int64_t first = 0, length = 1, distance = 1;

  // All elements of a tensor.
  static Runs all(std::int64_t elements);

  // Whether a tensor of this size has them: the distance divides the number of its elements.
  bool fit(std::int64_t elements) const;
  std::int64_t count(std::int64_t elements) const { return elements / distance * length; }

  std::int64_t element(std::int64_t position) const {
    return first + position / length * distance + position % length;
  }
  // Of the first element of the runs that is not before this one.
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

// Of the elements at these positions of `to` and `from`, ascending; neighbours are joined.
WEFT_EXPORT std::vector<SharedElements> shared_elements(const Runs& to, Positions in_to, const Runs& from,
                                                        Positions in_from);
// The same for several ranges of positions of `to`, ascending. They are left without what is found.
WEFT_EXPORT std::vector<SharedElements> take_shared(const Runs& to, std::vector<Positions>& wanted,
                                                    const Runs& from, Positions in_from);

}  // namespace weft::sharded
