// SimProcess: one incarnation of a process in a simulated world: its loops and executors, and what it keeps.
//
// Made by SimWorld::start(), and lives as long as the world, also when it has crashed: a crash runs nothing,
// not even destructors; its jobs and objects stand still until the world ends, its network is cut (SimCrash),
// and what is posted to it is dropped. Whatever is made for a process is given to keep(), or it would go on
// living. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_loop.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace weft::test {

enum class SimCrash : std::uint8_t {
  process,  // the kernel goes on: what was sent arrives, peers see the end of their connections at once
  host,     // nothing is heard any more: peers see silence, and a reset once the name has another incarnation
};

class WEFT_EXPORT SimProcess {
 public:
  ~SimProcess();
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  SimWorld& world() const { return world_; }
  const std::string& name() const { return name_; }
  std::uint64_t incarnation() const { return incarnation_; }  // its number in the world, from 1
  bool alive() const { return alive_; }

  std::shared_ptr<SimLoop> make_loop();
  std::shared_ptr<SimExecutor> make_executor();

  // Objects that make up the process; those kept last end first.
  template <class T>
  T& keep(std::shared_ptr<T> object) {
    kept_.push_back(object);
    return *object;
  }
  void let_go();  // ends them now, as a process does that ends orderly

  // Its threads stand still for so long, as one that is stopped or swapped out; the network goes on.
  void stall(std::chrono::nanoseconds span);

 private:
  friend class SimWorld;
  SimProcess(SimWorld& world, std::string name, std::uint64_t incarnation);
  template <class Runner>
  std::shared_ptr<Runner> make(const char* kind);
  void stop();   // nothing of it runs any more
  void clear();  // what stood still ends
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
