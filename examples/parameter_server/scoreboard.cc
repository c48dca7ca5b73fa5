#include "parameter_server/scoreboard.h"

#include <algorithm>
#include <numeric>
#include <utility>

void Scoreboard::record(Point point) {
  std::lock_guard lock(mutex_);
  points_.push_back(std::move(point));
}

void Scoreboard::finish(Point last, double test_accuracy) {
  std::lock_guard lock(mutex_);
  images_ += last.images - last.before;
  seconds_ = std::max(seconds_, last.seconds);
  accuracies_.push_back(test_accuracy);
  points_.push_back(std::move(last));
}

weft::rpc::Future<void> Scoreboard::meet(std::uint64_t trainers) {
  weft::rpc::Promise<void> promise;
  auto future = promise.future();
  std::vector<weft::rpc::Promise<void>> met;
  {
    std::lock_guard lock(mutex_);
    meeting_.push_back(std::move(promise));
    if (meeting_.size() == trainers) met = std::exchange(meeting_, {});
  }
  for (auto& one : met) one.complete({});
  return future;
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
