// Progress: a progress bar of a trainer, with its loss and its images (or other rows of a data set) per
// second.
//
// A line is printed with the first batch, every five seconds, and at the end. Thread-safety: used by one
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

class Progress {
 public:
  // rows: what the rows of the data set are, in the plural.
  Progress(std::string name, std::int64_t total_images, std::string rows = "images");

  // The progress of a run, and a run that resumes from it.
  struct State {
    std::int64_t images = 0, batches = 0;
    double loss = 0;  // smoothed over about 20 batches
  };
  const State& state() const { return state_; }
  void go_on(const State& state);

  void advance(std::int64_t images, double loss);
  void finish();  // prints the last line

  std::int64_t images_before() const { return images_before_; }  // of the run that it resumes
  double fraction() const { return static_cast<double>(state_.images) / static_cast<double>(total_); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string line() const;

  const std::string name_;
  const std::int64_t total_;
  const std::string rows_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
  bool first_ = true;
  State state_;
  std::int64_t images_before_ = 0;
};
