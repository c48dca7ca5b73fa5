// FusionTuner: searches for the fusion threshold and the cycle time with the most bytes per second.
//
// A coordinate search over a grid. It measures each threshold with the present cycle time and selects the
// best one, then each cycle time with that threshold, and so on until a round changes neither. The caller
// measures a point in several windows of time. The score of the point is their median; the first window after
// a change is a warm-up and does not count. The search is deterministic and reads no clock: equal windows
// lead to equal settings. Not thread-safe. Horovod's parameter manager (Sergeev and Del Balso, 2018) uses the
// same method with a Bayesian search.
#pragma once

#include <weft/rpc/core/export.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::data_parallel {

// The settings that the tuner optimizes.
struct FusionSettings {
  std::uint64_t bytes = std::uint64_t{64} << 20;  // maximum size of a launch of several requests
  // The longest time for which ready requests wait for others. They wait only while a launch is in flight, or
  // while a request waits for some ranks.
  std::chrono::nanoseconds cycle = std::chrono::milliseconds{1};
  friend bool operator==(const FusionSettings&, const FusionSettings&) = default;
};

// The grid. The search starts at its first point.
struct FusionGrid {
  std::vector<std::uint64_t> bytes = {std::uint64_t{64} << 20, 0, std::uint64_t{1} << 20,
                                      std::uint64_t{8} << 20, std::uint64_t{32} << 20};
  std::vector<std::chrono::nanoseconds> cycles = {std::chrono::milliseconds{1}, std::chrono::nanoseconds{0},
                                                  std::chrono::milliseconds{5}};
  int windows = 3;  // the number of windows of a point that count
};

class WEFT_EXPORT FusionTuner {
 public:
  // invalid_argument: an axis of the grid is empty, or windows < 1.
  explicit FusionTuner(FusionGrid grid);

  FusionSettings settings() const;     // the settings to use now; if done(), the best ones
  bool done() const { return done_; }  // a round has changed nothing
  // Call it after each window. bytes: the number of bytes that were reduced in the window, with the present
  // settings. seconds: the duration of the window.
  void add(std::uint64_t bytes, double seconds);

  // A measured point: the median of its windows.
  struct Score {
    FusionSettings settings;
    double bytes_per_second;
  };
  const std::vector<Score>& scores() const { return scores_; }  // in the order of measurement
  std::string csv() const;                                      // of the scores, with a heading

 private:
  using Point = std::pair<std::size_t, std::size_t>;  // indices of a threshold and of a cycle time
  FusionSettings at(const Point& point) const {
    return {grid_.bytes[point.first], grid_.cycles[point.second]};
  }
  std::optional<double> score_of(const Point& point) const;
  void advance();

  const FusionGrid grid_;
  Point best_{0, 0}, present_{0, 0};
  bool along_cycles_ = false;    // the axis that is searched
  int unchanged_ = 0;            // axes in sequence that have not changed the best point
  std::vector<double> windows_;  // of the present point, the warm-up included
  std::vector<Score> scores_;
  bool done_ = false;
};

}  // namespace weft::data_parallel
