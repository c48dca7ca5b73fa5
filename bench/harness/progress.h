// Prints the progress of a run to stderr. On a terminal, one line is rewritten; otherwise a line is printed
// at intervals. Thread-safety: one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace weft::bench {

class Progress {
 public:
  explicit Progress(std::size_t steps);
  void step(const std::string& what);    // begins
  void remark(const std::string& text);  // this line is not overwritten
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t steps_, begun_ = 0;
  bool terminal_;
  Clock::time_point started_ = Clock::now(), printed_{};
};

}  // namespace weft::bench
