// Reports: reads the steps that the workers of a job report. Each report is one line in a named pipe:
//
//   GENERATION RANK RANKS PID NANOSECONDS     the time of CLOCK_MONOTONIC at the end of the step
//
// Thread-safety: one thread.
#pragma once

#include "bench/harness/process.h"

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace weft::bench {

class Reports {
 public:
  using Clock = std::chrono::steady_clock;
  using Generation = std::pair<std::uint64_t, int>;  // its number, its ranks
  struct Start {
    Generation generation;
    Clock::time_point last_before;   // time of the last report of a step of an earlier generation
    Clock::time_point completed;     // when all ranks have completed a step
    std::map<int, pid_t> processes;  // by rank
  };

  Reports();
  ~Reports();
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;

  const std::string& path() const { return path_; }
  // Waits until all ranks of a generation that satisfies `wanted` have completed a step. Throws
  // std::runtime_error if the launcher exits, or after 120 s.
  Start wait(Process& launcher, const std::function<bool(const Generation&)>& wanted);
  void read_for(std::chrono::nanoseconds time);  // reads reports, so that the pipe does not fill up

 private:
  void read(std::chrono::milliseconds timeout);
  void take(const std::string& line);

  std::string path_;
  int pipe_;
  std::string rest_;
  struct First {
    pid_t process;
    Clock::time_point completed;
  };
  std::map<Generation, std::map<int, First>> first_;  // the first step of each rank
  std::map<Generation, Clock::time_point> last_;
};

}  // namespace weft::bench
