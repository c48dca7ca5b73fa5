// Several agents that call each other in every way, while their network and their processes fail in every
// way. Whatever happens: every call ends exactly once, and says truly whether it may have run; what is lent
// to a call is not looked at once it has ended; and when all has come to rest, nothing is held, nothing is
// under way, and everybody reaches everybody.
#pragma once

#include <weft/rpc/agent/link.h>

#include "tests/rpc/simulation/agents_sim_desk.h"

namespace weft::test {

using namespace std::chrono_literals;

// What a seed went through, over all seeds: a simulation that reaches only the easy cases proves little.
using Tally = std::map<std::string, std::uint64_t>;

class Simulation {
 public:
  // With a fault that is planted on purpose, it must find a violation.
  Simulation(SimWorld& world, Tally& tally, Fault fault = Fault::none)
      : world_(world),
        random_(world.random()),
        tally_(tally),
        ledger_(world.keep(std::make_shared<Ledger>(world, fault != Fault::none))),
        plant_(world.keep(std::make_shared<Plant>(fault, world.order().next()))),
        silent_(random_.chance(250)),
        beats_(random_.chance(250)) {
    world.network().weather() = SimWeather::draw(random_);
    world.pace().stalls = random_.coin() ? 0 : random_.spread(1, 20);
    ways_.options.heartbeat = {.interval = beats_ ? 5s : 0s, .patience = 20s};
    ways_.hurried = silent_ && !beats_;
    ways_.streams = ways_.relays = !silent_ || beats_;
    if (random_.coin()) {
      // Little credit. Calls along ways of peers may wait for each other, until their deadlines.
      ways_.hurried = true;
      ways_.relays = false;
      ways_.options.limits.calls = static_cast<std::uint32_t>(random_.spread(1, 16));
      ways_.options.limits.in_flight = random_.spread(1, 100'000);
    }
    ways_.patient = !ways_.hurried && !beats_;
    for (std::uint64_t i = random_.between(2, 4); i != 0; --i) names_.push_back("w" + std::to_string(i));
    for (const std::string& name : names_) start(name);
  }

  void run() {
    struct Closing {  // what is torn down with the world completes too
      Ledger& ledger;
      ~Closing() { ledger.close(); }
    } closing{ledger_};
    for (std::uint64_t calls = random_.between(10, 60); calls != 0; --calls) {
      if (Program* program = anybody()) program->act(names_);
      if (random_.chance(120)) fault();
      world_.run_for(std::chrono::microseconds(random_.spread(1, 20'000)));
    }
    come_to_rest();
    everybody_reaches_everybody();
    leave();
    for (const auto& [number, call] : ledger_.calls()) {
      ++tally_[call.value ? "value" : call.error ? std::string(rpc::to_string(*call.error)) : "no end"];
      if (call.error && call.execution == rpc::Execution::not_sent) ++tally_["not sent"];
      if (call.error && call.runs == 1) ++tally_["failed, and ran"];
    }
  }

 private:
  void start(const std::string& name) {
    auto program = std::make_shared<Program>(ledger_, world_.start(name), ways_, plant_);
    world_.keep(program);
    programs_[name] = program.get();
  }
  Program* anybody() {
    std::vector<Program*> running;
    for (const auto& [name, program] : programs_)
      if (program->runs()) running.push_back(program);
    return running.empty() ? nullptr : random_.pick(running);
  }

  // --- Faults ---

  void fault() {
    Program* victim = anybody();
    if (victim == nullptr) return;
    const std::string name = victim->process().name();
    const std::string other = random_.pick(names_);
    switch (random_.below(silent_ ? 9 : 7)) {
      case 0:
        if (world_.network().reset_any()) ++tally_["reset"];
        return;
      case 1:
        ++tally_["partition"];
        random_.coin() ? world_.network().partition({name}, {other}) : world_.network().cut(name, other);
        return world_.after(random_.up_to(200ms), [&network = world_.network()] { network.heal(); });
      case 2:
        ++tally_["stall"];
        return victim->process().stall(random_.up_to(100ms));
      case 3:
        ++tally_["crash"];
        world_.crash(victim->process(), SimCrash::process);
        return restart_later(name);
      case 4:
        ++tally_["shut down"];
        victim->end();
        return exit_later(name);
      case 5: {
        ++tally_["drained"];
        auto drained = victim->agent().drain(random_.up_to(1s));
        std::move(drained).then([this, victim, name](rpc::Result<void>&&) {
          // Not here: an agent does not end on its own loop.
          world_.after(0ns, [this, victim, name] {
            if (!victim->runs()) return;
            victim->end();
            exit_later(name);
          });
        });
        return;
      }
      case 6:
        ++tally_["calm"];
        return world_.network().calm();
      case 7:
        ++tally_["crash of host"];
        world_.crash(victim->process(), SimCrash::host);
        return restart_later(name);
      default:
        ++tally_["blackhole"];
        return world_.network().blackhole(name, other);
    }
  }
  void exit_later(const std::string& name) {
    world_.after(random_.up_to(200ms), [this, name] {
      world_.crash(programs_[name]->process(), SimCrash::process);
      restart_later(name);
    });
  }
  void restart_later(const std::string& name) {
    world_.after(random_.up_to(200ms), [this, name] {
      if (world_.find(name) == nullptr && !resting_) start(name);
    });
  }

  // --- What must hold ---

  void rest(const char* what) {
    if (beats_) {
      world_.run_for(10min);
    } else if (!world_.run_until_idle(3h)) {
      world_.violation(std::string("does not come to rest ") + what);
    }
  }

  void come_to_rest() {
    resting_ = true;
    world_.network().calm();
    rest("when all is calm");
    for (const auto& [name, program] : programs_)
      if (program->runs()) {
        nothing_is_held(name, program->agent().counts());
        credit_is_back(name, *program->agent().core());
      }
    for (const std::string& name : names_) {
      if (world_.find(name) == nullptr || !programs_[name]->runs()) {
        if (SimProcess* gone = world_.find(name)) world_.crash(*gone, SimCrash::process);
        start(name);
      }
    }
    ledger_.check_at_rest();
  }

  void nothing_is_held(const std::string& name, const rpc::AgentCounts& counts) {
    const auto none = [&](const char* what, std::uint64_t count) {
      if (count != 0) world_.violation(name + " is at rest with " + std::to_string(count) + " " + what);
    };
    none("calls that it serves", counts.serving);
    none("calls that it waits for", counts.waiting);
    none("bytes of requests held", counts.serving_bytes);
    none("bytes of calls held", counts.waiting_bytes);
    // A frame that stopped half-way stays while its connection is not known to be dead.
    if (!silent_ || beats_) none("bytes of its pool lent", counts.memory.lent_bytes);
  }

  // But for what the other side keeps of notifications until it is worth a frame: less than a quarter.
  void credit_is_back(const std::string& name, const rpc::AgentCore& core) {
    if (silent_ && !beats_) return;                     // of a connection that is dead, and not known to be
    const rpc::Limits& granted = ways_.options.limits;  // by everybody
    for (const auto& link : core.all_links()) {
      if (!link->usable()) continue;
      const auto out = [&](const char* what, std::uint64_t used, std::uint64_t most) {
        if (used >= std::max<std::uint64_t>(most / 4, 1))
          world_.violation(name + " is at rest, and " + std::to_string(used) + " of " + std::to_string(most) +
                           " " + what + " of credit have not come back from " + link->peer().name);
      };
      out("calls", link->credit().calls(), granted.calls);
      out("bytes", link->credit().bytes(), granted.in_flight);
    }
  }

  void everybody_reaches_everybody() {
    for (const auto& [from, program] : programs_)
      for (const std::string& to : names_) {
        const rpc::Peer peer = program->agent().connect("sim://" + to).with({.deadline = 1min});
        std::string last = "nothing";
        bool reached = false;
        // A silent connection is noticed when its side gives up repeating what it sent.
        for (int i = 0; i < (silent_ ? 40 : 1) && !reached; ++i) {
          try {
            reached = world_.got(peer.ready()).name == to;
            const std::uint64_t number = ledger_.begin(program->process(), "last");
            ledger_[number].dropped = true;  // looked at here
            reached = reached && world_.got(peer.call<&Desk::add>(number, 1U, 2U)) == 3;
          } catch (const rpc::Error& error) {
            last = error.what();
          }
        }
        if (!reached) world_.violation(from + " does not reach " + to + ": " + last);
      }
  }

  void leave() {
    for (const auto& [name, program] : programs_) {
      try {
        world_.got(program->agent().drain(1s));
      } catch (const rpc::Error& error) {
        world_.violation(name + " has calls under way when all is at rest: " + error.what());
      }
    }
    for (const auto& [name, program] : programs_) program->end();
    rest("after everybody's end");
    for (const auto& [name, program] : programs_)
      if (const auto open = world_.network().open_streams(program->process()); open != 0 && !silent_)
        world_.violation(name + " has left, with " + std::to_string(open) + " connections open");
    ledger_.check_at_rest();
  }

  SimWorld& world_;
  SimRandom& random_;
  Tally& tally_;
  Ledger& ledger_;
  Plant& plant_;       // which ends first: what it keeps was lent
  const bool silent_;  // connections may die without a word
  const bool beats_;   // and heartbeats see it. Such a world never comes to rest
  Program::Ways ways_;
  bool resting_ = false;
  std::vector<std::string> names_;
  std::map<std::string, Program*> programs_;  // the present life of each
};

}  // namespace weft::test
