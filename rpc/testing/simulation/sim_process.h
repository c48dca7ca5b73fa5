// SimProcess: one incarnation of a process in a simulated world. It has loops and executors, and owns
// objects.
//
// SimWorld::start() makes it, and it exists as long as the world, even after a crash. A crash runs no code,
// not even destructors: the jobs and objects of the process remain until the world ends, its network is cut
// (SimCrash), and jobs that are posted to it are dropped. Pass all objects of a process to keep(): an object
// that the test owns could still run code after the crash, at least its destructor. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_loop.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace weft::test {

enum class SimCrash : std::uint8_t {
  process,  // the kernel survives: sent data arrives, and peers see the end of their connections at once
  host,     // peers see nothing; when the name has a new incarnation, they get a reset
};

class WEFT_EXPORT SimProcess {
 public:
  ~SimProcess();
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  // name(): also the name of the host, to which faults of the network apply. alive(): false after a crash.
  SimWorld& world() const { return world_; }
  const std::string& name() const { return name_; }
  std::uint64_t incarnation() const { return incarnation_; }  // numbered in the world, from 1
  bool alive() const { return alive_; }

  // Make a loop or an executor, which the process keeps until the world ends. After a crash it drops all
  // jobs.
  std::shared_ptr<SimLoop> make_loop();
  std::shared_ptr<SimExecutor> make_executor();

  // Owns an object of the process; objects are destroyed in reverse order.
  template <class T>
  T& keep(std::shared_ptr<T> object) {
    kept_.push_back(object);
    return *object;
  }

  void destroy_kept();  // destroys the objects of keep() now, as when a process ends in an orderly way

  // Stops the process's threads for `span`, like a process that is stopped or swapped out; the network
  // continues.
  void stall(std::chrono::nanoseconds span);

 private:
  friend class SimWorld;
  SimProcess(SimWorld& world, std::string name, std::uint64_t incarnation);
  template <class Runner>
  std::shared_ptr<Runner> make(const char* kind);
  void stop();   // from now on, no code of the process runs
  void clear();  // destroys the remaining objects and jobs
  void detach(rpc::Clock::time_point end);

  SimWorld& world_;
  const std::string name_;
  const std::uint64_t incarnation_;
  bool alive_ = true;
  std::vector<std::shared_ptr<SimRunner>> runners_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<rpc::Callback> remains_;
};

}  // namespace weft::test
