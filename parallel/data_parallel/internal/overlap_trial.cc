#include <weft/parallel/data_parallel/internal/overlap_trial.h>

#include <algorithm>

namespace weft::data_parallel {

Overlap OverlapTrial::next() const { return backwards_ % 2 == 0 ? Overlap::group : Overlap::after; }

void OverlapTrial::add(std::chrono::nanoseconds duration) {
  if (backwards_ >= warm_up) durations_[next() == Overlap::group ? 0 : 1].push_back(duration);
  ++backwards_;
}

std::array<double, 2> OverlapTrial::medians() const {
  std::array<double, 2> seconds{};
  for (std::size_t way = 0; way < 2; ++way) {
    auto sorted = durations_[way];
    std::sort(sorted.begin(), sorted.end());
    if (!sorted.empty()) seconds[way] = std::chrono::duration<double>(sorted[sorted.size() / 2]).count();
  }
  return seconds;
}

Overlap OverlapTrial::faster(const std::array<double, 2>& seconds) {
  return seconds[0] <= seconds[1] ? Overlap::group : Overlap::after;
}

}  // namespace weft::data_parallel
