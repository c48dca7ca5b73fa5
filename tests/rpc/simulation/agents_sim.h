// Several agents that make all kinds of calls to each other, while their network and their processes fail in
// all kinds of ways. Invariants: every call completes exactly once and reports correctly whether its handler
// may have run. weft does not read memory that was lent to a call after the call has completed. When the
// world is quiescent, no memory is held, no call is in flight, and every agent reaches every other agent.
#pragma once

#include <weft/rpc/endpoint/sessions.h>

#include "tests/rpc/simulation/agents_sim_desk.h"
#include "tests/support/sim_job.h"

namespace weft::test {

using namespace std::chrono_literals;

class Simulation {
 public:
  // With a fault that is planted on purpose, it must find a violation.
  Simulation(SimWorld& world, SimTally& tally, Fault fault = Fault::none)
      : world_(world),
        random_(world.random()),
        tally_(tally),
        ledger_(world.keep(std::make_shared<Ledger>(world, fault != Fault::none))),
        plant_(world.keep(std::make_shared<Plant>(fault, world.order().next()))),
        fate_{.silent = random_.chance(250), .beats = random_.chance(250)},
        job_(world, tally, fate_, [this](SimProcess& process) {
          return std::make_shared<Program>(ledger_, process, ways_, plant_);
        }) {
    world.network().weather() = SimWeather::draw(random_);
    world.pace().stalls = random_.coin() ? 0 : random_.spread(1, 20);
    ways_.options.heartbeat = fate_.heartbeat();
    ways_.hurried = fate_.silent && !fate_.beats;
    ways_.streams = ways_.relays = !fate_.silent || fate_.beats;
    if (random_.coin()) {
      // With little credit, calls that are passed along a path of peers may wait for each other until their
      // deadlines.
      ways_.hurried = true;
      ways_.relays = false;
      ways_.options.limits.calls = static_cast<std::uint32_t>(random_.spread(1, 16));
      ways_.options.limits.in_flight = random_.spread(1, 100'000);
    }
    ways_.patient = !ways_.hurried && !fate_.beats;
    job_.start();
  }

  void run() {
    struct Closing {  // calls that are destroyed with the world complete, too
      Ledger& ledger;
      ~Closing() { ledger.close(); }
    } closing{ledger_};
    for (std::uint64_t calls = random_.between(10, 60); calls != 0; --calls) {
      if (Program* program = job_.anybody()) program->act(job_.names());
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
  // --- Faults ---

  void fault() {
    if (!random_.chance(250)) return job_.fault();
    Program* victim = job_.anybody();
    if (victim == nullptr) return;
    if (random_.coin()) {
      ++tally_["shut down"];
      victim->end();
      return exit_later(*victim);
    }
    ++tally_["drained"];
    victim->agent().drain(random_.up_to(1s)).then([this, victim](rpc::Result<void>&&) {
      // Posted, because an agent must not end on its own loop.
      world_.after(0ns, [this, victim] {
        if (!victim->runs()) return;
        victim->end();
        exit_later(*victim);
      });
    });
  }
  void exit_later(Program& program) {
    world_.after(random_.up_to(200ms), [this, &program] {
      const std::string name = program.process().name();
      world_.crash(program.process(), SimCrash::process);
      job_.restart_later(name);
    });
  }

  // --- What must hold ---

  void come_to_rest() {
    job_.calm();
    job_.rest("when all is calm");
    for (const Program* program : job_.running()) {
      nothing_is_held(*program);
      credit_is_back(*program);
    }
    for (const std::string& name : job_.names()) {
      SimProcess* old = world_.find(name);
      if (old != nullptr && job_.programs().at(name)->runs()) continue;
      if (old != nullptr) world_.crash(*old, SimCrash::process);
      job_.start(name);
    }
    ledger_.check_at_rest(!fate_.silent || fate_.beats);
  }

  void nothing_is_held(const Program& program) {
    const rpc::AgentCounts counts = program.agent().counts();
    job_.expect_none(program, "calls that it serves", counts.serving);
    job_.expect_none(program, "calls that it waits for", counts.waiting);
    job_.expect_none(program, "bytes of calls held", counts.waiting_bytes);
    // A frame that stopped half-way stays charged until its connection is known to be dead.
    if (fate_.silent && !fate_.beats) return;
    job_.expect_none(program, "bytes of requests held", counts.serving_bytes);
    job_.expect_none(program, "bytes of its pool lent", counts.memory.lent_bytes);
  }

  // All credit has been returned, except the credit of notifications that the receiver has not sent back yet:
  // less than a quarter.
  void credit_is_back(const Program& program) {
    if (fate_.silent && !fate_.beats) return;           // the connection is dead, and not all agents
    const rpc::Limits& granted = ways_.options.limits;  // know it
    for (const auto& session : program.agent().core()->sessions().all()) {
      if (!session->is_connected()) continue;
      const auto out = [&](const char* what, std::uint64_t used, std::uint64_t most) {
        if (used >= std::max<std::uint64_t>(most / 4, 1))
          world_.violation(program.process().name() + " is idle, and " + std::to_string(used) + " of " +
                           std::to_string(most) + " " + what + " of credit have not come back from " +
                           session->peer().name);
      };
      out("calls", session->calls().calls_in_use(), granted.calls);
      out("bytes", session->calls().bytes_in_use(), granted.in_flight);
    }
  }

  void everybody_reaches_everybody() {
    for (const auto& [from, program] : job_.programs())
      for (const std::string& to : job_.names()) {
        const rpc::Peer peer =
            program->agent().connect("sim://" + to).with({.timeout = 1min, .wait_for_ready = true});
        std::string last = "nothing";
        bool reached = false;
        // A silent connection is noticed when its side gives up repeating what it sent.
        for (int i = 0; i < (fate_.silent ? 40 : 1) && !reached; ++i) {
          try {
            reached = world_.got(peer.ready()).name == to;
            const std::uint64_t number = ledger_.begin(program->process(), "last");
            ledger_[number].dropped = true;  // this function checks the result
            reached = reached && world_.got(peer.call<&Desk::add>(number, 1U, 2U)) == 3;
          } catch (const rpc::Error& error) {
            last = error.what();
          }
        }
        if (!reached) world_.violation(from + " does not reach " + to + ": " + last);
      }
  }

  void leave() {
    for (const auto& [name, program] : job_.programs()) {
      try {
        world_.got(program->agent().drain(1s));
      } catch (const rpc::Error& error) {
        world_.violation(name + " has calls in flight although the world is quiescent: " + error.what());
      }
    }
    for (const auto& [name, program] : job_.programs()) program->end();
    job_.rest("after everybody's end");
    for (const auto& [name, program] : job_.programs())
      if (const auto open = world_.network().open_streams(program->process()); open != 0 && !fate_.silent)
        world_.violation(name + " has left, with " + std::to_string(open) + " connections open");
    ledger_.check_at_rest(!fate_.silent || fate_.beats);
  }

  SimWorld& world_;
  SimRandom& random_;
  SimTally& tally_;
  Ledger& ledger_;
  Plant& plant_;  // is destroyed first: the memory that it keeps was lent by the ledger
  const SimFate fate_;
  Program::Ways ways_;
  SimJob<Program> job_;
};

}  // namespace weft::test
