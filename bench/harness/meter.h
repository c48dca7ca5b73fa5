// Meters decide when a measurement has warmed up and when it has lasted long enough, and compute its figures.
//
// Calls are counted and timed only after the warm-up. A measurement lasts for the given time, and for at
// least a few calls, even if these take longer. Thread-safety: none.
#pragma once

#include "bench/harness/row.h"

#include <chrono>
#include <vector>

namespace weft::bench {

struct Budget {
  std::chrono::nanoseconds warm_up = std::chrono::milliseconds{150};
  std::chrono::nanoseconds duration = std::chrono::milliseconds{500};
};

// Peers check every answer with this function. Throws std::runtime_error.
void expect_answer(bool right);

// Measures the latency of calls that are made one after the other.
class LatencyMeter {
 public:
  explicit LatencyMeter(const Budget& budget);
  void begin() { began_ = Clock::now(); }
  bool end();  // ends the call that begin() started; false: it was the last one
  Figures figures() const;

 private:
  using Clock = std::chrono::steady_clock;
  Budget budget_;
  Clock::time_point created_ = Clock::now(), began_;
  std::chrono::nanoseconds elapsed_{0};
  std::size_t ignored_ = 0;
  std::vector<double> microseconds_;
};

// Measures the rate of calls, any number of which are in flight.
class RateMeter {
 public:
  explicit RateMeter(const Budget& budget) : budget_(budget) {}
  bool count(std::size_t calls);  // adds calls that have completed since the last count; false: enough
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
