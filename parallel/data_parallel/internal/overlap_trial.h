// OverlapTrial: measures whether it is faster to reduce buckets during backward or after it.
//
// If each rank's group has a free core, the reduction overlaps with backward. Otherwise both compete for one
// core, and cache misses and context switches may cost more than the overlap saves. So the first backwards
// use the two modes in turn, and the faster mode is used from then on. The first two backwards do not count,
// because the buckets are planned again after the first. A value; it reads no clock.
#pragma once

#include <weft/parallel/data_parallel/options.h>

#include <array>
#include <chrono>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT OverlapTrial {
 public:
  static constexpr std::size_t warm_up = 2, rounds = 5;

  Overlap next() const;                         // the mode of the next backward
  void add(std::chrono::nanoseconds duration);  // of the backward that used next()
  // Whether both modes have been measured completely.
  bool complete() const { return backwards_ == warm_up + 2 * rounds; }
  // The median seconds of the modes `group` and `after` on this rank. faster() selects a mode from the sums
  // of the medians over all ranks.
  std::array<double, 2> medians() const;
  static Overlap faster(const std::array<double, 2>& seconds);

 private:
  std::size_t backwards_ = 0;
  std::array<std::vector<std::chrono::nanoseconds>, 2> durations_;
};

}  // namespace weft::data_parallel
