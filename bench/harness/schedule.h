// Computes the order of measurements. A pure function.
//
// The speed of the machine changes over time, because of other load, the clock of the processor, and caches.
// Therefore measurements that are compared run close together and repeatedly: in each round, each case runs
// all its contenders one after the other, and each round begins with another contender.
#pragma once

#include <cstddef>
#include <vector>

namespace weft::bench {

struct Turn {
  int round;  // from 1
  std::size_t case_index, contender_index;
  friend bool operator==(const Turn&, const Turn&) = default;
};

// contenders[i]: the number of contenders of case i.
std::vector<Turn> interleave(const std::vector<std::size_t>& contenders, int rounds);

}  // namespace weft::bench
