// Meters: when a measurement has warmed up, when it has lasted long enough, and what it found.
//
// Calls are counted, and timed, only after the warm-up. A measurement lasts for a time, and for a few calls
// at least, however long they take. Thread-safety: none.
#pragma once

#include "bench/harness/row.h"

#include <chrono>
#include <vector>

namespace weft::bench {

struct Budget {
  std::chrono::nanoseconds warm_up = std::chrono::milliseconds{150};
  std::chrono::nanoseconds duration = std::chrono::milliseconds{500};
};

// One call after the other: how long each takes.
class LatencyMeter {
 public:
  explicit LatencyMeter(const Budget& budget);
  void begin() { began_ = Clock::now(); }
  bool end();  // of the call begun last; false: that was the last one
  Figures figures() const;

 private:
  using Clock = std::chrono::steady_clock;
  Budget budget_;
  Clock::time_point created_ = Clock::now(), began_;
  std::chrono::nanoseconds elapsed_{0};
  std::size_t ignored_ = 0;
  std::vector<double> microseconds_;
};

// Any number of calls at a time: how many a second.
class RateMeter {
 public:
  explicit RateMeter(const Budget& budget) : budget_(budget) {}
  bool count(std::size_t calls);  // that have ended since; false: enough
  Figures calls() const;
  Figures bandwidth(std::size_t bytes_per_call) const;

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const { return std::chrono::duration<double>(last_ - started_).count(); }

  Budget budget_;
  Clock::time_point created_ = Clock::now(), started_, last_;
  bool warm_ = false;
  std::size_t ignored_ = 0, counted_ = 0;
};

}  // namespace weft::bench
