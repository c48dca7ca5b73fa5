#include "parameter_server/scoreboard.h"

#include <algorithm>
#include <numeric>

void Scoreboard::record(Point point) {
  std::lock_guard lock(mutex_);
  points_.push_back(std::move(point));
}

void Scoreboard::finish(Point last, double test_accuracy) {
  std::lock_guard lock(mutex_);
  images_ += last.images;
  seconds_ = std::max(seconds_, last.seconds);
  accuracies_.push_back(test_accuracy);
  points_.push_back(std::move(last));
}

std::vector<Point> Scoreboard::points() const {
  std::lock_guard lock(mutex_);
  return points_;
}

double Scoreboard::test_accuracy() const {
  std::lock_guard lock(mutex_);
  return std::accumulate(accuracies_.begin(), accuracies_.end(), 0.0) /
         static_cast<double>(accuracies_.size());
}

double Scoreboard::images_per_second() const {
  std::lock_guard lock(mutex_);
  return static_cast<double>(images_) / seconds_;
}
