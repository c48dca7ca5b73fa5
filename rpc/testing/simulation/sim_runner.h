// SimRunner: what runs jobs one at a time in a simulated world, as a thread does in a real one: a loop or an
// executor of a process.
//
// Made by its SimProcess, and shared with whoever posts to it; it may outlive its world, and then drops what
// it is given. After each job it is busy for a while of virtual time, so that loops overtake each other as
// threads do. A crashed runner drops its jobs. Thread-safety: none, like everything in a simulation.
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

  const std::string& name() const { return name_; }
  // The process that it belongs to; null once the world has ended.
  SimProcess* process() const { return process_; }

 protected:
  SimRunner(SimProcess& process, std::string name) : name_(std::move(name)), process_(&process) {}

  bool runs() const { return process_ != nullptr && !crashed_; }
  bool current() const;  // one of its jobs is being run
  SimWorld& world() const;
  rpc::Clock::time_point time() const;  // the world's, or that of its end
  // When a job posted now may run: later, where another thread has to be woken for it, and never before those
  // posted earlier.
  rpc::Clock::time_point arrival();

 private:
  friend class SimProcess;
  friend class SimWorld;

  virtual rpc::Clock::time_point due() const = 0;     // of its first job; time_point::max(): it has none
  virtual rpc::Callback take() = 0;                   // a job that is due
  virtual std::vector<rpc::Callback> take_all() = 0;  // it has crashed

  const std::string name_;
  SimProcess* process_;
  bool crashed_ = false;
  rpc::Clock::time_point busy_until_{};
  rpc::Clock::time_point last_arrival_{};
  rpc::Clock::time_point end_{};
};

}  // namespace weft::test
