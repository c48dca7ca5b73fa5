// SimWorld: processes with their loops, a network and a clock, all simulated by one thread from one seed.
//
//   SimWorld world(seed);
//   SimProcess& server = world.start("server");
//   ...                              // loops, streams, agents, kept by their processes
//   world.crash(server, SimCrash::process);
//   world.run_until_idle();
//
// Code runs only within the run functions. They run the job that is due first. If several jobs are due at the
// same time, they pick one at random. The world destroys everything that it owns. Objects that jobs refer to
// must be passed to keep(), or outlive the world. Thread-safety: none.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/testing/simulation/sim_network.h>
#include <weft/rpc/testing/simulation/sim_process.h>
#include <weft/rpc/testing/simulation/sim_random.h>
#include <weft/rpc/testing/simulation/sim_trace.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::test {

// Durations in virtual time; each is drawn between zero and the maximum here.
struct SimPace {
  std::chrono::nanoseconds longest_job = std::chrono::microseconds{4};
  // The wake-up of another thread, after a post.
  std::chrono::nanoseconds longest_wakeup = std::chrono::microseconds{20};
  std::uint64_t stalls = 1;  // jobs in 1000 after which the thread stalls for a while
  std::chrono::nanoseconds longest_stall = std::chrono::milliseconds{50};
};

// The initial pace and weather of a world, which a test may change later, and the limits of the world.
struct SimOptions {
  SimPace pace;
  SimWeather weather;
  std::size_t trace = 300;               // the number of events that are stored
  bool live_trace = false;               // also prints events as they occur
  std::uint64_t max_steps = 20'000'000;  // more steps count as a simulation that never ends
};

// Thrown if the simulation does not end, or if a wait has timed out.
class WEFT_EXPORT SimFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class WEFT_EXPORT SimWorld {
 public:
  explicit SimWorld(std::uint64_t seed, SimOptions options = {});
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // The parts of the world. Changes of pace() and of the network's weather apply to later events.
  std::uint64_t seed() const { return seed_; }
  rpc::Clock::time_point now() const { return now_; }  // the virtual time, which begins at 1 s
  SimRandom& random() { return random_; }              // for the program under test and its faults
  SimRandom& order() { return order_; }                // for the order of jobs
  SimPace& pace() { return options_.pace; }
  SimNetwork& network() { return network_; }
  SimTrace& trace() { return trace_; }
  std::uint64_t steps() const { return steps_; }         // jobs and events so far
  const SimRunner* running() const { return running_; }  // the runner of the current job; null: none

  // Processes. A name has one incarnation at a time.
  SimProcess& start(const std::string& name);
  SimProcess* find(const std::string& name);  // the living incarnation; null: none
  // No effect on a process that has crashed before.
  void crash(SimProcess& process, SimCrash how);

  // Run a job of the test itself, which a crash does not affect.
  void at(rpc::Clock::time_point when, rpc::Callback job);
  void after(std::chrono::nanoseconds wait, rpc::Callback job) { at(rpc::later(now_, wait), std::move(job)); }
  // The world owns the object, and destroys it after all other parts of the world.
  template <class T>
  T& keep(std::shared_ptr<T> object) {
    kept_.push_back(object);
    return *object;
  }

  // Running. These functions throw the exceptions of jobs, and SimFailure after too many steps.
  // Runs one job or event. false: nothing is due by `until`.
  bool step(rpc::Clock::time_point until = rpc::Clock::time_point::max());
  // Runs all jobs that are due within `span`, and advances the time by `span`.
  void run_for(std::chrono::nanoseconds span);
  // Runs until `done` returns true, at most for `timeout`. false: the timeout has expired.
  bool run_until(const std::function<bool()>& done, std::chrono::nanoseconds timeout);
  // Runs until no job is left; false: a job is due later than `horizon` from now.
  bool run_until_idle(std::chrono::nanoseconds horizon = std::chrono::hours{24});
  // The value of a future, or its error; SimFailure if it does not complete within `timeout`.
  template <class T>
  T got(rpc::Future<T> future, std::chrono::nanoseconds timeout = std::chrono::hours{1}) {
    if (!run_until([&] { return future.ready(); }, timeout))
      throw SimFailure("a future did not complete within " + std::to_string(timeout.count()) +
                       " ns of virtual time");
    return future.get();
  }

  // Reports a violation: the seed has failed, but the run continues.
  void violation(std::string text);
  // The first ten violations.
  const std::vector<std::string>& violations() const { return violations_; }

 private:
  struct Event {
    rpc::Clock::time_point when;
    std::uint64_t tie;
    std::uint64_t number;
    mutable rpc::Callback job;
    bool operator<(const Event& other) const {  // a heap has its greatest element first
      return std::tie(when, tie, number) > std::tie(other.when, other.tie, other.number);
    }
  };

  void run(SimRunner& runner);
  void run_event();

  const std::uint64_t seed_;
  SimOptions options_;
  SimRandom random_;
  SimRandom order_;
  SimTrace trace_;
  rpc::Clock::time_point now_;
  std::uint64_t steps_ = 0;
  std::uint64_t last_event_ = 0;
  const SimRunner* running_ = nullptr;
  std::vector<Event> events_;  // a heap
  std::vector<std::string> violations_;

  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::unique_ptr<SimProcess>> processes_;  // including the dead ones
  SimNetwork network_;
};

}  // namespace weft::test
