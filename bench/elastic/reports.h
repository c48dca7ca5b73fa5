// Reports: reads the steps that the workers of a job report. Each report is one line in a named pipe:
//
//   GENERATION RANK RANKS PID STEP NANOSECONDS     the time of CLOCK_MONOTONIC at the end of the step
//
// STEP: the number of the training's step. A step that is made again has the same number.
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
    Clock::time_point last_before;  // time of the last report of a step of an earlier generation
    Clock::time_point completed;    // when all ranks have completed a step
    std::int64_t steps_lost;        // the steps of earlier generations that this generation makes again
  };

  Reports();
  ~Reports();
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;

  const std::string& path() const { return path_; }
  // Waits until all ranks of a generation that satisfies `wanted` have completed a step. Throws
  // std::runtime_error if the launcher exits, or after 180 s.
  Start wait(Process& launcher, const std::function<bool(const Generation&)>& wanted);
  // Reads reports for this time, so that the pipe does not fill up. Throws std::runtime_error if the launcher
  // exits.
  void read_for(Process& launcher, std::chrono::nanoseconds time);
  // The highest number of a step, and the generation, of the reports until now.
  std::int64_t steps() const { return steps_; }
  const Generation& latest() const { return latest_; }
  // The process of a worker of the latest generation.
  pid_t process(std::size_t rank) const;
  // Sends the signal to a worker of the latest generation, if it still runs. rank: modulo the number of
  // ranks.
  void signal(std::size_t rank, int signal) const;

 private:
  void read(std::chrono::milliseconds timeout);
  void take(const std::string& line);

  std::string path_;
  int pipe_;
  std::string rest_;
  struct First {
    pid_t process;
    std::int64_t step;
    Clock::time_point completed;
  };
  struct Last {
    std::int64_t step;
    Clock::time_point completed;
  };
  std::map<Generation, std::map<int, First>> first_;  // the first step of each rank
  std::map<Generation, Last> last_;
  Generation latest_;
  std::int64_t steps_ = 0;
};

}  // namespace weft::bench
