// The order of measurements. A pure function.
//
// The machine drifts: by its neighbours, its clock, its caches. Measurements to be compared are therefore
// made close together, and often: in every round each case runs all its contenders one after the other, and
// another contender begins each round.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::bench {

struct Turn {
  int round;  // from 1
  std::size_t case_index, contender_index;
  friend bool operator==(const Turn&, const Turn&) = default;
};

// contenders[i]: how many case i has.
std::vector<Turn> interleave(const std::vector<std::size_t>& contenders, int rounds);

}  // namespace weft::bench
