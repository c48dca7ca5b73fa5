// SimRunner: the base class of the loops and executors in a simulated world. It runs jobs one at a time, as a
// thread does in the real world.
//
// Made by its SimProcess, and shared with the code that posts to it. It may outlive its world, and then drops
// the jobs that are posted to it. After each job it is busy for some virtual time, so that loops overtake
// each other as threads do. A crashed runner drops its jobs. Thread-safety: none, as in the whole simulation.
#pragma once

#include <weft/rpc/core/loop.h>

#include <string>
#include <vector>

namespace weft::test {

class SimProcess;
class SimWorld;

class WEFT_EXPORT SimRunner {
 public:
  virtual ~SimRunner() = default;
  SimRunner(const SimRunner&) = delete;
  SimRunner& operator=(const SimRunner&) = delete;

  const std::string& name() const { return name_; }  // in the trace: "anna#1 loop0"
  // Its process; null after the end of the world.
  SimProcess* process() const { return process_; }

 protected:
  // A job that was posted to the runner. when: the virtual time at which it was posted.
  struct Posted {
    rpc::Clock::time_point when;
    rpc::Callback job;
  };
  // process: creates and owns the runner.
  SimRunner(SimProcess& process, std::string name) : name_(std::move(name)), process_(&process) {}

  // Whether the runner runs jobs that are posted now: its process has not crashed, and its world has not
  // ended.
  bool runs() const { return process_ != nullptr && !crashed_; }

  bool current() const;                 // whether one of its jobs is running
  SimWorld& world() const;              // call it only while the world exists
  rpc::Clock::time_point time() const;  // the world's time; after the world's end, the time of the end
  // The earliest time at which a job that is posted now may run. It is later than now if another thread must
  // wake up for the job, and never before the time of a job that was posted earlier.
  rpc::Clock::time_point arrival();

 private:
  friend class SimProcess;
  friend class SimWorld;

  virtual rpc::Clock::time_point due() const = 0;     // the time of its first job; time_point::max(): no jobs
  virtual rpc::Callback take() = 0;                   // returns a job that is due
  virtual std::vector<rpc::Callback> take_all() = 0;  // returns all jobs, after a crash

  const std::string name_;
  SimProcess* process_;
  bool crashed_ = false;
  rpc::Clock::time_point busy_until_{};
  rpc::Clock::time_point last_arrival_{};
  rpc::Clock::time_point end_{};
};

}  // namespace weft::test
