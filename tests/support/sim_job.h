// A job in a simulated world: some programs, each under its name, and the faults that their network and their
// processes suffer; and tests that run such a job for many seeds.
//
// A Program has process(), agent() and runs(). Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_agent.h>
#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace weft::test {

// The numbers of events in a simulation, over all seeds. A simulation that reaches only the easy cases proves
// little.
class SimTally : public std::map<std::string, std::uint64_t> {
 public:
  // Expects each event at least 50 times if the default number of seeds was run.
  void expect(std::initializer_list<const char*> events) {
    if (std::getenv("WEFT_SIM_TALLY") != nullptr)
      for (const auto& [what, times] : *this)
        std::fprintf(stderr, "%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
    if ((*this)["seeds"] < 1000) return;
    for (const char* event : events) EXPECT_GE((*this)[event], 50U) << event;
  }
};

// The faults of a simulated world.
enum class Troubles : std::uint8_t {
  any,     // any fault, or none
  resets,  // connections are reset at any time, and no other fault occurs: no operation may fail
};

struct SimFate {
  bool silent = false;  // hosts may crash, and connections die, without a notification to their peers
  bool beats = false;   // heartbeats detect this; a world with heartbeats never becomes idle

  static SimFate noticed(bool silent) { return {.silent = silent, .beats = silent}; }
  rpc::Heartbeat heartbeat() const {
    return {.interval = std::chrono::seconds(beats ? 5 : 0), .timeout = std::chrono::seconds(20)};
  }
};

template <class Program>
class SimJob {
 public:
  using Make = std::function<std::shared_ptr<Program>(SimProcess&)>;

  SimJob(SimWorld& world, SimTally& tally, SimFate fate, Make make)
      : world_(world), random_(world.random()), tally_(tally), fate_(fate), make_(std::move(make)) {
    for (std::uint64_t i = random_.between(2, 4); i != 0; --i) names_.push_back("w" + std::to_string(i));
  }

  const std::vector<std::string>& names() const { return names_; }
  const std::map<std::string, Program*>& programs() const {
    return programs_;
  }  // the current incarnation of each
  std::vector<Program*> running() const {
    std::vector<Program*> running;
    for (const auto& [name, program] : programs_)
      if (program->runs()) running.push_back(program);
    return running;
  }
  Program* anybody() {  // any running program; nullptr: none
    const auto all = running();
    return all.empty() ? nullptr : random_.pick(all);
  }

  void start() {
    for (const std::string& name : names_) start(name);
  }
  void start(const std::string& name) { programs_[name] = &world_.keep(make_(world_.start(name))); }
  void restart_later(const std::string& name) {
    world_.after(random_.up_to(std::chrono::milliseconds(200)), [this, name] {
      if (world_.find(name) == nullptr && !resting_) start(name);
    });
  }

  // Injects a fault that a program cannot prevent.
  void fault() {
    Program* victim = anybody();
    if (victim == nullptr) return;
    SimNetwork& network = world_.network();
    const std::string name = victim->process().name();
    const std::string other = random_.pick(names_);
    switch (random_.below(fate_.silent ? 7 : 5)) {
      case 0:
        if (network.reset_any()) ++tally_["reset"];
        return;
      case 1:
        ++tally_["partition"];
        random_.coin() ? network.partition({name}, {other}) : network.cut(name, other);
        return world_.after(random_.up_to(std::chrono::milliseconds(200)), [&network] { network.heal(); });
      case 2:
        ++tally_["stall"];
        return victim->process().stall(random_.up_to(std::chrono::milliseconds(100)));
      case 3:
        ++tally_["crash"];
        world_.crash(victim->process(), SimCrash::process);
        return restart_later(name);
      case 4:
        ++tally_["calm"];
        return network.calm();
      case 5:
        ++tally_["crash of host"];
        world_.crash(victim->process(), SimCrash::host);
        return restart_later(name);
      default:
        ++tally_["blackhole"];
        return network.blackhole(name, other);
    }
  }

  // From now on the network works, and agents that end are not restarted.
  void calm() {
    resting_ = true;
    world_.network().calm();
  }
  void rest(const char* when) {
    if (fate_.beats) {
      world_.run_for(std::chrono::minutes(10));
    } else if (!world_.run_until_idle(std::chrono::hours(3))) {
      world_.violation(std::string("does not come to rest ") + when);
    }
  }
  void expect_none(const Program& program, const char* what, std::uint64_t count) {
    if (count != 0)
      world_.violation(program.process().name() + " is idle with " + std::to_string(count) + " " + what);
  }

 private:
  SimWorld& world_;
  SimRandom& random_;
  SimTally& tally_;
  const SimFate fate_;
  const Make make_;
  bool resting_ = false;
  std::vector<std::string> names_;
  std::map<std::string, Program*> programs_;
};

// Returns the peer of that name after it has replied. again: retries after an error, for a network whose only
// fault is that connections are lost, possibly during a handshake.
inline rpc::Task<rpc::Peer> reach(rpc::Agent* agent, std::string name, bool again) {
  const rpc::Peer peer = agent->peer(name);
  for (int attempt = 0;; ++attempt) {
    try {
      co_await peer.with({.wait_for_ready = again}).ready();
      co_return peer;
    } catch (const rpc::Error&) {
      if (!again || attempt == 1000) throw;
    }
  }
}

// With a planted fault, some seed must report `found`, and a repetition of that seed must report the same.
inline void expect_found_and_replayed(const char* found, std::uint64_t seeds,
                                      const std::function<void(SimWorld&)>& body) {
  const auto run = [&](std::uint64_t seed) {
    SimWorld world(seed);
    try {
      body(world);
    } catch (const std::exception& error) {
      world.violation(error.what());
    }
    std::string all;
    for (const std::string& violation : world.violations()) all += violation + "\n";
    return all;
  };
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string said = run(seed);
    if (said.find(found) == std::string::npos) continue;
    EXPECT_EQ(run(seed), said);
    return;
  }
  ADD_FAILURE() << "the planted fault was not found in " << seeds << " seeds";
}

inline std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace weft::test
