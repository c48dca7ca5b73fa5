#include <weft/parallel/data_parallel/negotiated/fusion_tuner.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <sstream>

namespace weft::data_parallel {

FusionTuner::FusionTuner(FusionGrid grid) : grid_(std::move(grid)) {
  if (grid_.bytes.empty() || grid_.cycles.empty() || grid_.windows < 1)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "FusionTuner: the grid has " + std::to_string(grid_.bytes.size()) + " thresholds, " +
                         std::to_string(grid_.cycles.size()) + " cycle times and " +
                         std::to_string(grid_.windows) + " windows, expected one or more of each");
}

FusionSettings FusionTuner::settings() const { return at(present_); }

std::optional<double> FusionTuner::score_of(const Point& point) const {
  for (const Score& score : scores_)
    if (score.settings == at(point)) return score.bytes_per_second;
  return std::nullopt;
}

void FusionTuner::add(std::uint64_t bytes, double seconds) {
  if (done_ || !(seconds > 0)) return;
  windows_.push_back(static_cast<double>(bytes) / seconds);
  if (windows_.size() <= static_cast<std::size_t>(grid_.windows)) return;
  std::sort(windows_.begin() + 1, windows_.end());
  scores_.push_back({at(present_), windows_[1 + (windows_.size() - 1) / 2]});
  windows_.clear();
  advance();
}

// Moves to the next point that was not measured yet.
void FusionTuner::advance() {
  while (unchanged_ < 2) {
    const std::size_t count = along_cycles_ ? grid_.cycles.size() : grid_.bytes.size();
    Point best = best_;
    for (std::size_t i = 0; i < count; ++i) {
      const Point point = along_cycles_ ? Point{best_.first, i} : Point{i, best_.second};
      const auto score = score_of(point);
      if (!score) {
        present_ = point;
        return;
      }
      if (*score > *score_of(best)) best = point;
    }
    unchanged_ = best == best_ ? unchanged_ + 1 : 1;
    best_ = best;
    along_cycles_ = !along_cycles_;
  }
  present_ = best_;
  done_ = true;
}

std::string FusionTuner::csv() const {
  std::ostringstream text;
  text << "fusion_bytes,cycle_us,MB_per_s\n";
  for (const Score& score : scores_)
    text << score.settings.bytes << ','
         << std::chrono::duration<double, std::micro>(score.settings.cycle).count() << ','
         << score.bytes_per_second / 1e6 << '\n';
  return text.str();
}

}  // namespace weft::data_parallel
