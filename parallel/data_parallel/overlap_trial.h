// OverlapTrial: finds out whether buckets are better reduced during backward or after it.
//
// With a free core for each rank's group, reduction during backward hides behind it. Without one, both
// compete for the core, and the rank may lose more to cache misses and context switches than it hides. So the
// first backwards use both ways in turn, and the faster one stays. The first two backwards do not count: the
// buckets are planned anew after the first. A value; it reads no clock.
#pragma once

#include <weft/parallel/data_parallel/options.h>

#include <array>
#include <chrono>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT OverlapTrial {
 public:
  static constexpr std::size_t warm_up = 2, rounds = 5;

  Overlap next() const;                         // of the next backward
  void add(std::chrono::nanoseconds duration);  // of the backward that used next()
  // Both ways have had all their backwards.
  bool complete() const { return backwards_ == warm_up + 2 * rounds; }
  // Seconds of the two ways, `group` and `after`: medians. Added up over the ranks they say which one to
  // keep.
  std::array<double, 2> medians() const;
  static Overlap faster(const std::array<double, 2>& seconds);

 private:
  std::size_t backwards_ = 0;
  std::array<std::vector<std::chrono::nanoseconds>, 2> durations_;
};

}  // namespace weft::data_parallel
