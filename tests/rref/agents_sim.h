// Agents that create objects on each other and pass RRefs on, in a simulated world whose network and
// processes fail in all kinds of ways. Invariants: every action completes. An object that an agent holds
// replies, or its holder learns that the owner is lost. When no agent holds a reference and the world is
// quiescent, no object is alive.
#pragma once

#include <weft/rref/protocol_service.h>
#include <weft/rref/rref.h>

#include "tests/rpc/simulation/agents_sim_faults.h"
#include "tests/support/sim_job.h"

namespace weft::rref::sim {

using namespace std::chrono_literals;
using weft::test::Fault;
using weft::test::Plant;
using weft::test::SimProcess;
using weft::test::SimRandom;
using weft::test::SimWorld;
using weft::test::Troubles;

// Objects that are alive, by the incarnation of the process that they live in.
struct Ledger {
  explicit Ledger(SimWorld& w) : world(w) {}
  SimWorld& world;
  std::map<std::uint64_t, std::int64_t> alive;
  static inline std::shared_ptr<Ledger> current;  // of the world that is running
};

class Thing {
 public:
  explicit Thing(std::int64_t number)
      : number_(number),
        ledger_(Ledger::current),
        incarnation_(ledger_->world.running()->process()->incarnation()) {
    ++ledger_->alive[incarnation_];
  }
  ~Thing() { --ledger_->alive[incarnation_]; }
  Thing(const Thing&) = delete;
  Thing& operator=(const Thing&) = delete;
  std::int64_t number() const { return number_; }
  using Service =
      rpc::Service<"sim.thing", rpc::Constructor<std::int64_t>, rpc::Method<"number", &Thing::number>>;

 private:
  const std::int64_t number_;
  const std::shared_ptr<Ledger> ledger_;
  const std::uint64_t incarnation_;
};

struct Held {
  RRef<Thing> thing;
  std::int64_t number = 0;
};

// The objects that one program keeps. Other programs may add to them and copy from them.
class Desk {
 public:
  void keep(RRef<Thing> thing, std::int64_t number) { held.push_back({std::move(thing), number}); }
  std::tuple<RRef<Thing>, std::int64_t> give() {
    if (held.empty()) throw rpc::Error(rpc::ErrorKind::not_found, "nothing is held here");
    return {held.back().thing, held.back().number};
  }
  rpc::Task<std::int64_t> use(rpc::CallContext& call, RRef<Thing> thing) {
    co_return co_await thing.with(call).call<&Thing::number>();
  }
  using Service = rpc::Service<"sim.desk", rpc::Method<"keep", &Desk::keep>, rpc::Method<"give", &Desk::give>,
                               rpc::Method<"use", &Desk::use>>;

  std::vector<Held> held;
};

// Faults that a test injects, in addition to those of the connections.
enum class Misuse : std::uint8_t {
  none,
  ends_what_it_holds,  // a program reports the end of a reference that it still holds
  keeps_for_ever,      // a program never releases a reference that it has handed over
  retry_is_lost,       // an owner that has refused the end of a fork ignores it when it comes again
};

// An owner refuses some ends of forks, as an owner without room for a request does, while the connection
// stays open.
class Shedding {
 public:
  Shedding(std::uint64_t seed, weft::test::SimTally& tally, bool loses_retries)
      : random_(seed), tally_(tally), loses_retries_(loses_retries) {}

  // The method as `core` serves it: some calls of it are refused.
  static void install(const std::shared_ptr<Shedding>& shedding, rpc::AgentCore& core) {
    const auto entry = std::const_pointer_cast<rpc::MethodEntry>(
        core.methods().find(rpc::name_hash("weft.rref.fork_deletes")));
    entry->run = [shedding, run = entry->run](std::shared_ptr<rpc::IncomingCall> call) {
      if (shedding->answers(*call)) return;
      run(std::move(call));
    };
  }

 private:
  bool answers(rpc::IncomingCall& call) {
    const auto forks = rpc::Codec<std::vector<protocol::ForkDelete>>::decode(call.argument(0));
    const bool again =
        std::all_of(forks.begin(), forks.end(), [&](const auto& one) { return refused_.contains(one.fork); });
    if (again) ++tally_["fork_deletes again"];
    if (again && loses_retries_) {
      call.reply([&](rpc::ValueWriter writer) {
        rpc::Codec<std::vector<protocol::Standing>>::encode(
            writer, std::vector<protocol::Standing>(forks.size(), {protocol::Verdict::ended, {}}));
      });
      return true;
    }
    if (!random_.chance(200)) return false;
    ++tally_["fork_deletes refused"];
    for (const auto& one : forks) refused_.insert(one.fork);
    call.refuse(
        std::make_exception_ptr(rpc::Error(rpc::ErrorKind::resource_exhausted, "no room, by the plan")));
    return true;
  }

  SimRandom random_;
  weft::test::SimTally& tally_;
  const bool loses_retries_;
  std::set<ForkId> refused_;
};

class Program {
 public:
  Program(SimProcess& process, const rpc::AgentOptions& options, const std::vector<std::string>& names,
          Plant& plant, Misuse misuse, const std::shared_ptr<Shedding>& shedding, bool resets_only)
      : process_(process),
        agent_(weft::test::start_planted_agent(process, options, plant, layers())),
        misuse_(misuse),
        resets_only_(resets_only) {
    for (const std::string& name : names) agent_.core()->routes().to_name(name, {"sim://" + name});
    Shedding::install(shedding, *agent_.core());
    agent_.allow_create<Thing>();
    agent_.serve(desk_);
  }

  struct Action {
    std::string what;
    bool look = false;  // checks the held object once the world is quiescent
    bool ended = false;
    std::exception_ptr error;
  };

  SimProcess& process() const { return process_; }
  rpc::Agent& agent() const { return agent_; }
  bool runs() const { return process_.alive(); }
  std::vector<Held>& held() { return desk_->held; }
  const std::vector<std::shared_ptr<Action>>& actions() const { return actions_; }

  void act(SimRandom& random, const std::vector<std::string>& names, std::int64_t number) {
    const std::string peer = random.pick(names);
    switch (random.below(6)) {
      case 0:
      case 1:
        return begin("create at " + peer, create(peer, number));
      case 2:
        return begin("take from " + peer, take(peer));
      case 3:
        if (!held().empty()) begin("give to " + peer, give(peer, random.pick(held())));
        return;
      case 4:
        if (!held().empty()) begin("have used by " + peer, have_used(peer, random.pick(held())));
        return;
      default:
        if (!held().empty())
          held().erase(held().begin() + static_cast<std::ptrdiff_t>(random.below(held().size())));
    }
  }
  void look_at_all() {
    for (const Held& one : held()) begin("look at " + std::to_string(one.number), look(one), true);
  }

 private:
  void begin(std::string what, rpc::Task<void> task, bool look = false) {
    auto action = std::make_shared<Action>(Action{std::move(what), look, false, nullptr});
    actions_.push_back(action);
    note("begins to " + action->what);
    std::move(task).start(agent_.core()->handlers()).then([this, action](rpc::Result<void>&& result) {
      if (!result.ok()) action->error = result.error();
      action->ended = true;
      note("has ended to " + action->what + (result.ok() ? "" : ": " + weft::test::text_of(result.error())));
    });
  }
  void note(const std::string& what) {
    process_.world().trace().note(process_.world().now(), process_.name() + " " + what);
  }

  rpc::Task<void> create(std::string name, std::int64_t number) {
    const rpc::Peer peer = co_await weft::test::reach(&agent_, name, resets_only_);
    desk_->keep(rref::create<Thing>(peer, number), number);
  }
  rpc::Task<void> take(std::string name) {
    const rpc::Peer peer = co_await weft::test::reach(&agent_, name, resets_only_);
    auto [thing, number] = co_await peer.call<&Desk::give>();
    desk_->keep(std::move(thing), number);
  }
  rpc::Task<void> give(std::string name, Held one) {
    const rpc::Peer peer = co_await weft::test::reach(&agent_, name, resets_only_);
    co_await peer.call<&Desk::keep>(one.thing, one.number);
    if (misuse_ == Misuse::keeps_for_ever) kept_.push_back(one.thing);
    if (misuse_ == Misuse::ends_what_it_holds && one.thing.reference()->fork()) {
      const Reference& held = *one.thing.reference();
      co_await agent_.peer(held.owner().name)
          .call<&ProtocolService::fork_deletes>(
              std::vector<protocol::ForkDelete>(1, protocol::ForkDelete{held.id(), *held.fork()}));
    }
  }
  rpc::Task<void> have_used(std::string name, Held one) {
    const rpc::Peer peer = co_await weft::test::reach(&agent_, name, resets_only_);
    expect(co_await peer.call<&Desk::use>(one.thing), one);
  }
  rpc::Task<void> look(Held one) { expect(co_await one.thing.call<&Thing::number>(), one); }
  void expect(std::int64_t number, const Held& one) {
    if (number != one.number)
      process_.world().violation("an RRef to " + std::to_string(one.number) + " led to " +
                                 std::to_string(number));
  }

  SimProcess& process_;
  rpc::Agent& agent_;
  const std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  std::vector<std::shared_ptr<Action>> actions_;
  const Misuse misuse_;
  const bool resets_only_;
  std::vector<RRef<Thing>> kept_;
};

class Simulation {
 public:
  // With a fault that is planted on purpose, it must find a violation.
  Simulation(SimWorld& world, weft::test::SimTally& tally, Fault fault = Fault::none,
             Misuse misuse = Misuse::none, Troubles troubles = Troubles::any)
      : world_(world),
        random_(world.random()),
        tally_(tally),
        ledger_(std::make_shared<Ledger>(world)),
        plant_(world.keep(std::make_shared<Plant>(fault, world.order().next()))),
        resets_only_(troubles == Troubles::resets),
        shedding_(std::make_shared<Shedding>(world.order().next(), tally, misuse == Misuse::retry_is_lost)),
        troubled_(fault == Fault::none && misuse == Misuse::none && !resets_only_ && random_.chance(800)),
        fate_(weft::test::SimFate::noticed(troubled_ && random_.coin())),
        job_(world, tally, fate_, [this, misuse](SimProcess& process) {
          return std::make_shared<Program>(process, options_, job_.names(), plant_, misuse, shedding_,
                                           resets_only_);
        }) {
    world.keep(ledger_);
    Ledger::current = ledger_;
    if (troubled_ || resets_only_) world.network().weather() = weft::test::SimWeather::draw(random_);
    if (resets_only_) world.network().weather().refusals = 0;
    world.pace().stalls = random_.coin() ? 0 : random_.spread(1, 20);
    options_.heartbeat = fate_.heartbeat();
    job_.start();
  }

  void run() {
    for (std::uint64_t actions = random_.between(5, 40); actions != 0; --actions) {
      if (Program* program = job_.anybody()) program->act(random_, job_.names(), ++last_number_);
      if (troubled_ && random_.chance(120)) job_.fault();
      if (resets_only_ && random_.chance(300) && world_.network().reset_any()) ++tally_["reset"];
      world_.run_for(std::chrono::microseconds(random_.spread(1, 20'000)));
    }
    job_.calm();
    job_.rest("when all is calm");
    for (Program* program : job_.running()) program->look_at_all();
    job_.rest("after a look at all that is held");
    for (const Program* program : job_.running()) look_at(*program);
    for (Program* program : job_.running()) world_.after(0ns, [program] { program->held().clear(); });
    job_.rest("once nobody holds anything");
    for (const Program* program : job_.running()) nothing_is_left(*program);
  }

 private:
  // --- What must hold ---

  void look_at(const Program& program) {
    const std::string& name = program.process().name();
    for (const auto& action : program.actions()) {
      if (!action->ended) {
        world_.violation(name + " never ended to " + action->what);
        continue;
      }
      ++tally_[action->error == nullptr ? "well" : "failed"];
      if (action->error == nullptr) continue;
      if (action->look) check_lost(name, *action);
      if (troubled_) continue;
      if (const std::string why = weft::test::text_of(action->error);
          why.find("nothing is held here") == std::string::npos)
        world_.violation(name + " could not " + action->what + ": " + why);
    }
  }

  // The world is quiescent. A held object replies, except in three cases: its owner is lost, its creation
  // failed, or the agent that handed it over was lost before the owner knew of the fork.
  void check_lost(const std::string& name, const Program::Action& action) {
    try {
      std::rethrow_exception(action.error);
    } catch (const rpc::Error& error) {
      ++tally_["lost: " + std::string(rpc::to_string(error.kind()))];
      const bool lost =
          error.kind() == rpc::ErrorKind::owner_lost || error.kind() == rpc::ErrorKind::lease_lost;
      const std::string_view why = error.what();
      const auto says = [&](std::string_view words) { return why.find(words) != std::string_view::npos; };
      if (lost || says("its creation failed") || says("the object does not exist")) return;
      world_.violation(name + " could not " + action.what + ": " + error.what());
    }
  }

  void nothing_is_left(const Program& program) {
    const auto context = RRefLayer::of(*program.agent().core());
    const rpc::AgentCounts counts = program.agent().counts();
    job_.expect_none(program, "objects alive",
                     static_cast<std::uint64_t>(ledger_->alive[program.process().incarnation()]));
    for (const auto& object : context->live_objects()) {
      std::string holders = std::to_string(object.holds) + " holds";
      for (const auto& [fork, user] : object.forks)
        holders += ", " + to_string(fork) + " of " + to_string(user);
      world_.violation(program.process().name() + " is idle with object " + to_string(object.id) + ": " +
                       holders);
    }
    job_.expect_none(program, "forks", context->live_forks().size());
    job_.expect_none(program, "calls that it serves", counts.serving);
    job_.expect_none(program, "calls that it waits for", counts.waiting);
  }

  SimWorld& world_;
  SimRandom& random_;
  weft::test::SimTally& tally_;
  const std::shared_ptr<Ledger> ledger_;
  Plant& plant_;
  const bool resets_only_;
  const std::shared_ptr<Shedding> shedding_;
  const bool troubled_;  // its network and its processes fail
  const weft::test::SimFate fate_;
  rpc::AgentOptions options_;
  std::int64_t last_number_ = 0;
  weft::test::SimJob<Program> job_;
};

}  // namespace weft::rref::sim
