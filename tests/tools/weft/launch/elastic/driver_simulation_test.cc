// The driver in jobs whose hosts, workers and discovery fail at random, for many seeds. Further tests plant
// faults.
//
// A simulated job executes the driver's actions: workers become ready, fail, hang and stop after random
// times; hosts appear, vanish, die and change their slots; discovery is late or fails. Ready workers hang
// until the others exclude them; their processes are stopped until their leases end, and may continue later;
// hosts are cut from the network, so that their workers end long after the driver has stopped them. The store
// reports all this late. The driver itself dies after it has saved its state and before it has executed all
// of its actions; another one takes over. Then the faults end, and the test checks that the job grows to its
// size and succeeds. WEFT_SIM_SEED=n replays a seed, WEFT_SIM_SEEDS=n runs more.
#include "tools/weft/launch/elastic/driver.h"

#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "tests/support/sanitizer.h"
#include "tests/support/sim_job.h"

namespace weft::tool::launch::elastic::driver_simulation_test {
namespace {

using namespace std::chrono_literals;
using weft::test::SimRandom;
using weft::test::SimTally;
using weft::test::SimWorld;

// Planted faults of a simulation, each of which its checks must find.
enum class Fault : std::uint8_t {
  none,
  exits_are_lost,           // the driver does not learn that a worker has ended
  wakes_are_lost,           // the driver is not woken
  hosts_are_reported_late,  // after the faults, discovery reports an old list of hosts, permanently
  state_is_saved_late,      // a driver that takes over has the state before the last event
  losses_are_lost,          // the driver does not learn that a lease has ended
  exclusions_are_lost,      // the driver does not learn that the others have excluded a worker
  stops_are_lost            // workers of a host that is cut off are never reported as ended
};

constexpr std::chrono::nanoseconds longest_lease = 30s, longest_detection = 15s, longest_report = 5s;
constexpr std::chrono::nanoseconds longest_stop = 60s;  // on a host that is cut off
constexpr std::chrono::nanoseconds connect_timeout = 15s;

class SimulatedJob : public std::enable_shared_from_this<SimulatedJob> {
 public:
  SimulatedJob(SimWorld& world, SimTally& tally, Fault fault, std::size_t most)
      : world_(world), tally_(tally), fault_(fault), random_(world.random()) {
    const bool large = most > 100;
    next_host_ = large ? most / 10 : random_.spread(1, 6);
    for (std::size_t i = 0; i < next_host_; ++i)
      present_.push_back({"h" + std::to_string(i), large ? random_.between(6, 14) : random_.spread(1, 4)});
    fixed_ = random_.chance(250);
    options_.max_workers = large ? most : random_.between(1, most);
    options_.min_workers = random_.spread(1, options_.max_workers);
    options_.timeout = random_.between(20s, 300s);
    options_.start_timeout = random_.chance(200) ? 0s : random_.between(5s, 60s);
    options_.finish_wait = random_.between(1s, 30s);
    options_.blacklist.failures = random_.between(1, 4);
    options_.blacklist.healthy_after = random_.between(1s, 60s);
    options_.blacklist.cooldown = random_.chance(100) ? 0s : random_.between(1s, 20s);
    options_.blacklist.max_cooldown = random_.between(10s, 60s);
    options_.evict = random_.chance(300);
    if (random_.chance(250)) options_.reset_limit = random_.between(1, 8);
    options_.restarts = random_.chance(300) ? 0 : 1000;
    options_.seed = random_.next();
    mortal_ = random_.chance(300) ? random_.between(1, 50) : 0;
  }

  void run() {
    driver_ = std::make_unique<ElasticDriver>(options_, now());
    discover();
    trouble();
    world_.after(random_.between(30s, 600s), [self = shared_from_this()] { self->calm_down(); });
    world_.run_until([self = this] { return self->finished_; }, 2h);
    if (!finished_) violation("the job has not ended");
  }

 private:
  struct Process {
    StartWorker start;
    bool ready = false, stopping = false, dead = false;
    bool ordered = false;  // the driver has decided to stop it, and has died before it did
    std::chrono::nanoseconds ready_since{0};
    bool hung = false;             // makes no progress, and its agent answers
    bool frozen = false;           // stands still, or is on a host that is cut off
    std::optional<Event> failure;  // as the store states it
  };

  ElasticDriver::Time now() const { return world_.now().time_since_epoch(); }
  void violation(const std::string& text) { world_.violation(text); }
  void later(std::chrono::nanoseconds wait, std::function<void()> job) {
    world_.after(wait, [self = shared_from_this(), job = std::move(job)] {
      if (!self->finished_) job();
    });
  }

  // --- Events for the driver ---

  void pass(const Event& event) {
    if (finished_ || down_) return;
    std::optional<DriverState> before;
    if (fault_ == Fault::state_is_saved_late) before = driver_->save();
    const Actions actions = tell(event);
    if (!calm_ && random_.chance(mortal_)) return die_driving(actions, std::move(before));
    perform_all(actions);
    if (finished_) return;
    check();
    wake_later();
  }
  Actions tell(const Event& event) {
    if (options_.max_workers > 100) return driver_->handle(now(), event);
    const DriverState before = driver_->save();
    Actions actions = driver_->handle(now(), event);
    audit(event, before, driver_->save(), actions);
    return actions;
  }
  void perform_all(const Actions& actions) {
    for (const Action& action : actions) {
      if (finished_) violation("an action follows the end of the job");
      std::visit([this](const auto& it) { perform(it); }, action);
    }
  }

  // --- The death of the driver ---

  void die_driving(const Actions& actions, std::optional<DriverState> before) {
    ++tally_["driver dies"];
    down_ = true;
    ++wakes_;
    const auto done = static_cast<std::ptrdiff_t>(random_.below(actions.size() + 1));
    perform_all({actions.begin(), actions.begin() + done});
    for (auto action = actions.begin() + done; action != actions.end(); ++action) {
      ++tally_["action lost"];
      if (const auto* stop = std::get_if<StopWorker>(&*action)) {
        note_why(*stop);
        if (const auto process = processes_.find(stop->worker); process != processes_.end())
          process->second.ordered = true;
      }
      if (const auto* host = std::get_if<BlacklistHost>(&*action)) perform(*host);
    }
    if (finished_) return;
    later(random_.up_to(20s), [this, state = before ? *before : driver_->save()] { take_over(state); });
  }

  void take_over(const DriverState& state) {
    down_ = false;
    driver_ = std::make_unique<ElasticDriver>(options_, now());
    if (short_since_) short_since_ = now();
    perform_all(driver_->restore(now(), state));
    const auto inform = [this](const Event& event) {
      if (!finished_) perform_all(tell(event));
    };
    for (const auto& [id, worker] : state.workers)
      if (const auto process = processes_.find(id); process == processes_.end()) {
        const bool started =
            !exits_.try_emplace(id, WorkerExited{id, 137, "has not started", {}, true}).second;
        ++tally_[started ? "exit while no driver runs" : "start lost"];
      } else if (process->second.ready && !worker.ready) {
        process->second.ready_since = now();
        inform(WorkerReady{id});
      }
    for (const auto& [id, exit] : exits_) {
      if (successes_.erase(id) != 0) finishing_ = true;
      inform(exit);
    }
    exits_.clear();
    for (const auto& [id, process] : std::map(processes_))
      if (process.failure && reports(*process.failure)) inform(*process.failure);
    if (fixed_) inform(HostsFound{present_});
    pass(TimePassed{});
  }

  void wake_later() {
    const auto next = driver_->next_wake();
    if (!next || fault_ == Fault::wakes_are_lost) return;
    if (*next <= now()) return violation("the driver wants to be woken in the past");
    const std::uint64_t wake = ++wakes_;
    later(*next - now(), [this, wake] {
      if (wake == wakes_) pass(TimePassed{});
    });
  }

  void discover() {
    if (down_) {
      // No event arrives from a process.
    } else if (!calm_ && known_ && !fixed_ && random_.chance(100)) {
      pass(DiscoveryFailed{"a simulated reason"});
    } else if (!(fault_ == Fault::hosts_are_reported_late && calm_)) {
      std::map<std::string, std::size_t> hosts;
      for (const HostSlots& host : present_) hosts[host.host] = host.slots;
      if (hosts != reported_) reported_since_ = now();
      reported_ = std::move(hosts);
      known_ = true;
      pass(HostsFound{present_});
    }
    if (!fixed_) later(calm_ ? 1s : random_.between(100ms, 3s), [this] { discover(); });
  }

  // --- Actions of the driver ---

  void perform(const StartWorker& start) {
    ++tally_["start"];
    started_ = true;
    if (finishing_) violation("a worker starts after the success");
    const auto slots = reported_.find(start.host);
    if (slots == reported_.end() || start.slot >= slots->second)
      violation(start.host + " has no slot " + std::to_string(start.slot));
    if (slots != reported_.end() && start.slots != slots->second) violation("a wrong number of slots");
    if (held(start.host)) violation(start.host + " gets a worker before its cooldown ends");
    if (start.rank >= options_.max_workers) violation("rank " + std::to_string(start.rank) + " is too high");
    for (const auto& [id, other] : processes_) {
      if (other.start.host == start.host && other.start.slot == start.slot)
        violation("slot " + std::to_string(start.slot) + " of " + start.host + " is used twice");
      if (other.start.rank == start.rank) violation("rank " + std::to_string(start.rank) + " is used twice");
    }
    if (processes_.size() >= options_.max_workers) violation("more workers than the maximum");
    Process process{.start = start, .frozen = cut_off_.contains(start.host)};
    if (options_.start_timeout == 0s) process.ready = true, process.ready_since = now();
    processes_.emplace(start.worker, process);
    live(start.worker);
  }

  // A worker gets ready or hangs. Then it fails or continues.
  void live(WorkerId id) {
    if (processes_.at(id).frozen) {  // the host cannot be reached
      ++tally_["starts on a host that is cut off"];
      return later(random_.up_to(connect_timeout), [this, id] { die(id, 255); });
    }
    const bool sick = !calm_ && random_.chance(150);
    if (sick && random_.coin()) {
      ++tally_["fails at its start"];
      return later(random_.up_to(3s), [this, id] { die(id, 1); });
    }
    if (sick) {
      ++tally_["hangs at its start"];
      hung_.push_back(id);
      return;
    }
    if (options_.start_timeout != 0s)
      later(random_.up_to(4s), [this, id] {
        const auto process = processes_.find(id);
        if (process == processes_.end() || process->second.dead) return;
        if (process->second.frozen) return hung_.push_back(id);
        process->second.ready = true;
        process->second.ready_since = now();
        pass(WorkerReady{id});
      });
    if (!calm_ && random_.chance(400))
      later(random_.up_to(200s), [this, id] {
        if (!calm_) die(id, 137);
      });
  }

  void die(WorkerId id, int status) {
    const auto process = processes_.find(id);
    if (process == processes_.end() || std::exchange(process->second.dead, true)) return;
    ++tally_[status == 0 ? "success" : process->second.stopping ? "stopped" : "failure"];
    if (fault_ == Fault::exits_are_lost) return;
    later(random_.up_to(50ms), [this, id, status] {
      const auto exited = processes_.find(id);
      if (exited == processes_.end()) return;
      const Process process = exited->second;
      processes_.erase(exited);
      const bool success = status == 0 && !process.stopping && !process.ordered;
      if (success && !down_) finishing_ = true;
      if (success && down_) successes_.insert(id);
      const WorkerExited event{id, status, "has died"};
      if (down_) exits_[id] = event;
      pass(event);
    });
  }

  void perform(const StopWorker& stop) {
    ++tally_["stop"];
    note_why(stop);
    const bool repeated = stop.why == "it was stopped before";  // by a driver that takes over
    const auto found = processes_.find(stop.worker);
    if (found == processes_.end() && (repeated || exits_.contains(stop.worker))) return;
    if (found == processes_.end()) return violation("a worker is stopped that does not run");
    Process& process = found->second;
    if (repeated && process.stopping) return;
    if (std::exchange(process.stopping, true)) violation("a worker is stopped twice");
    const auto slots = reported_.find(process.start.host);
    const bool placed = slots != reported_.end() && process.start.slot < slots->second &&
                        !(options_.evict && held(process.start.host));
    if (process.ready && placed && !repeated && !process.failure && stop.why != "the job has failed" &&
        stop.why != "the job has succeeded")
      violation("a survivor is stopped: " + stop.why);
    const bool reachable = !cut_off_.contains(process.start.host);
    if (!reachable) ++tally_["stopped on a host that is cut off"];
    if (!reachable && fault_ == Fault::stops_are_lost) return;
    // The process may react to SIGTERM with status 0 or 143. It is killed after the grace time.
    later(random_.up_to(reachable ? 5s : longest_stop),
          [this, id = stop.worker, status = random_.chance(100) ? 0 : 143] { die(id, status); });
  }

  void note_why(const StopWorker& stop) {
    if (stop.why == "the job has failed" && !std::exchange(given_up_, true)) hosts_at_the_end_ = reported_;
  }

  void perform(const BlacklistHost& host) {
    ++tally_["blacklisted"];
    if (held(host.host)) violation(host.host + " is blacklisted twice");
    if (host.until.has_value() != (options_.blacklist.cooldown != 0s))
      violation("a cooldown that nobody wants");
    if (host.until && *host.until - now() < options_.blacklist.cooldown)
      violation("a cooldown that is too short");
    held_until_[host.host] = host.until.value_or(ElasticDriver::Time::max());
  }
  void perform(const Note& note) {
    world_.trace().note(world_.now(), note.text);
    if (note.text.starts_with("no worker is left")) ++tally_["restart"];
  }

  void perform(const EndJob& end) {
    finished_ = true;
    world_.trace().note(world_.now(), end.success ? "success" : end.why);
    if (!processes_.empty()) violation("workers run when the job ends");
    if (end.success != finishing_) violation("success and failure are confused");
    if (end.success) {
      ++tally_["ended well"];
      return;
    }
    const auto says = [&](const char* what) { return end.why.find(what) != std::string::npos; };
    for (const char* why : {"fewer than", "all hosts are blacklisted", "no worker is left", "reset limit"})
      if (says(why)) ++tally_[why];
    if (must_succeed_) violation("the job fails although nothing goes wrong any more: " + end.why);
    // If all workers had already been asked to stop, a late end of the job is not visible.
    if (!given_up_ && now() - reported_since_ > longest_stop + 1s) hosts_at_the_end_ = reported_;
    if (says("fewer than") || says("all hosts are blacklisted"))
      for (const auto& [host, slots] : hosts_at_the_end_)
        if (end.why.find(host + " (") == std::string::npos) violation("the error does not name " + host);
  }

  // --- Invariants ---

  // Checks what the driver counts in one event, and that it stops each worker that has failed.
  void audit(const Event& event, const DriverState& before, const DriverState& after,
             const Actions& actions) {
    std::optional<WorkerId> failed, stopped;
    bool blameless = false;
    std::string why;
    if (const auto* exited = std::get_if<WorkerExited>(&event)) {
      if (exited->status != 0) failed = exited->worker;
      blameless = exited->blameless;
    } else if (const auto* lost = std::get_if<WorkerLost>(&event)) {
      failed = stopped = lost->worker;
      why = lost->why;
    } else if (const auto* excluded = std::get_if<WorkerExcluded>(&event)) {
      failed = stopped = excluded->worker;
      why = excluded->why;
    }
    const auto known = failed ? before.workers.find(*failed) : before.workers.end();
    if (known == before.workers.end() || known->second.stopping) failed.reset();
    std::size_t starts = 0, stops = 0;
    bool told = false, is_stopped = false;
    std::vector<std::string> late;  // the hosts of workers that were not ready in time
    for (const Action& action : actions) {
      if (std::holds_alternative<StartWorker>(action)) ++starts;
      if (const auto* stop = std::get_if<StopWorker>(&action)) {
        ++stops;
        is_stopped = is_stopped || stop->worker == stopped;
        if (stop->why.starts_with("was not ready")) late.push_back(before.workers.at(stop->worker).host);
      }
      if (const auto* note = std::get_if<Note>(&action))
        told = told || (failed &&
                        note->text.find("rank " + std::to_string(known->second.rank) + " on " +
                                        known->second.host) != std::string::npos &&
                        note->text.find(why) != std::string::npos);
    }
    for (const std::string& host : late) {
      const auto was = entry_of(before.blacklist, host), is = entry_of(after.blacklist, host);
      if (!was.blacklisted && !is.blacklisted && is.failures <= was.failures)
        violation("a worker that is not ready in time is no failure of its host");
    }
    if (stopped && is_stopped != failed.has_value())
      violation("a worker that has failed is not stopped once");
    if (failed && !told) violation("the user does not learn of a failure");

    const bool running = before.phase == DriverPhase::running;
    if (failed && running) {
      ++tally_[stopped ? "failure of a process that runs" : "failure of a process that has ended"];
      audit_blacklist(known->second, blameless, entry_of(before.blacklist, known->second.host),
                      entry_of(after.blacklist, known->second.host));
    }
    const bool last = failed && running && before.formed && known->second.ready &&
                      std::none_of(before.workers.begin(), before.workers.end(), [&](const auto& other) {
                        return other.first != *failed && other.second.ready && !other.second.stopping;
                      });
    const bool gave_up = after.phase == DriverPhase::giving_up || after.phase == DriverPhase::ended;
    const bool restarts = last && !(gave_up && before.restarts == options_.restarts);
    if (after.restarts != before.restarts + (restarts ? 1 : 0)) violation("a wrong number of restarts");

    if (after.phase != DriverPhase::running) return;
    const auto* exited = std::get_if<WorkerExited>(&event);
    const auto gone = exited != nullptr ? before.workers.find(exited->worker) : before.workers.end();
    const bool expected = gone != before.workers.end() && gone->second.stopping;
    const bool changed = starts + stops != 0 || failed;
    const bool reset =
        changed && before.last_change && !expected && now() - *before.last_change > options_.reset_settle;
    if (after.resets != before.resets + (reset ? 1 : 0)) violation("a wrong number of resets");
    if (options_.reset_limit && after.resets > *options_.reset_limit)
      violation("the workers change more often than the limit permits");
  }
  static BlacklistEntry entry_of(const BlacklistState& blacklist, const std::string& name) {
    const auto host = blacklist.hosts.find(name);
    return host == blacklist.hosts.end() ? BlacklistEntry{} : host->second;
  }
  void audit_blacklist(const DriverWorker& worker, bool blameless, const BlacklistEntry& was,
                       const BlacklistEntry& is) {
    if (was.blacklisted) return;
    const bool healthy = worker.ready && now() - *worker.ready >= options_.blacklist.healthy_after;
    const std::size_t failures = (healthy && !blameless ? 0 : was.failures) + (blameless ? 0 : 1);
    if (is.failures != failures) violation("a wrong number of failures of a host");
    if (is.blacklisted != (!blameless && failures >= options_.blacklist.failures))
      violation(worker.host + " is blacklisted after a wrong number of failures");
  }

  // Workers that take part in the training.
  std::size_t able() const {
    return static_cast<std::size_t>(
        std::count_if(processes_.begin(), processes_.end(), [](const auto& entry) {
          const Process& process = entry.second;
          return process.ready && !process.stopping && !process.hung && !process.frozen && !process.failure;
        }));
  }
  std::size_t ready() const {
    return static_cast<std::size_t>(
        std::count_if(processes_.begin(), processes_.end(),
                      [](const auto& entry) { return entry.second.ready && !entry.second.stopping; }));
  }

  void check() {
    if (driver_->workers() != processes_.size()) violation("the driver and the job disagree on the workers");
    if (driver_->ready() != ready()) violation("the driver and the job disagree on the ready workers");
    if (ready() >= options_.min_workers || finishing_)
      short_since_.reset();
    else if (!short_since_)
      short_since_ = now();
    const bool all_stop = std::all_of(processes_.begin(), processes_.end(),
                                      [](const auto& entry) { return entry.second.stopping; });
    if (short_since_ && now() - *short_since_ > options_.timeout && (!all_stop || processes_.empty()))
      violation("fewer workers than the minimum for longer than the timeout");
    // In a large job the check does not follow each event, because it takes long.
    const bool look = options_.max_workers <= 100 || ++checks_ % 50 == 0;
    if (look && started_ && !finishing_ && (!all_stop || processes_.empty())) check_that_no_slot_is_idle();
  }
  void check_that_no_slot_is_idle() {
    std::map<std::string, std::size_t> idle = reported_;
    for (const auto& [id, process] : processes_)
      if (const auto host = idle.find(process.start.host);
          host != idle.end() && process.start.slot < reported_[host->first])
        --host->second;
    if (processes_.size() >= options_.max_workers) return;
    for (const auto& [host, slots] : idle)
      if (slots != 0 && !held(host)) violation(host + " has an idle slot");
  }
  bool held(const std::string& host) const {
    const auto until = held_until_.find(host);
    return until != held_until_.end() && now() < until->second;
  }

  // --- Faults ---

  void trouble() {
    if (calm_) return;
    later(random_.up_to(20s), [this] {
      if (calm_) return;
      switch (fixed_ ? 5 + random_.below(5) : random_.below(10)) {
        case 0:
          present_.push_back({"h" + std::to_string(next_host_++), random_.spread(1, 4)});
          ++tally_["host added"];
          break;
        case 1:  // its workers are ordered to stop, and may die before
          if (!present_.empty()) remove(random_.below(present_.size()), random_.coin());
          break;
        case 2:
          if (!present_.empty()) random_.pick(present_).slots = random_.spread(1, 6);
          break;
        case 3:
        case 4:
          if (!present_.empty()) std::swap(present_.front(), random_.pick(present_));
          break;
        case 5:
          if (!present_.empty()) kill_host(random_.pick(present_).host);
          break;
        case 6:
          for (const auto& [id, process] : std::map(processes_))
            if (random_.chance(100)) die(id, 137);
          break;
        case 7:
          for (auto& [id, process] : processes_)
            if (random_.chance(200) && process.ready) hang(id, process);
          break;
        case 8:
          for (auto& [id, process] : processes_)
            if (random_.chance(200)) freeze(id, process, random_.coin());
          break;
        default:
          if (!present_.empty()) cut_off(random_.pick(present_).host);
      }
      trouble();
    });
  }
  void remove(std::size_t which, bool dies) {
    const std::string host = present_[which].host;
    present_.erase(present_.begin() + static_cast<std::ptrdiff_t>(which));
    ++tally_["host removed"];
    if (dies) kill_host(host);
  }
  void kill_host(const std::string& host) {
    ++tally_["host dies"];
    for (const auto& [id, process] : std::map(processes_))
      if (process.start.host == host) die(id, 137);
  }

  // The user's code hangs. The other workers exclude the worker, if there are any that make progress.
  void hang(WorkerId id, Process& process) {
    if (process.dead || process.hung) return;
    process.hung = true;
    ++tally_["hangs"];
    later(random_.between(1s, longest_detection), [this, id] { exclude(id); });
  }
  void exclude(WorkerId id) {
    const auto process = processes_.find(id);
    if (process == processes_.end() || process->second.dead || process->second.failure) return;
    if (able() == 0) {
      if (calm_) process->second.hung = false;
      if (!calm_) later(1s, [this, id] { exclude(id); });
      return;
    }
    if (random_.chance(100)) {  // the worker was slow only
      process->second.hung = false;
      ++tally_["makes progress again"];
    } else {
      ++tally_["is excluded"];
      state_failure(id, WorkerExcluded{id, "no step"});
    }
  }

  // The process stands still until its lease has ended, and perhaps continues before or after that.
  void freeze(WorkerId id, Process& process, bool continues) {
    if (process.dead || process.frozen) return;
    process.frozen = true;
    ++tally_["stands still"];
    later(random_.between(2s, longest_lease), [this, id] { lose(id); });
    if (continues) later(random_.up_to(2 * longest_lease), [this, id] { thaw(id); });
  }
  void thaw(WorkerId id) {
    const auto process = processes_.find(id);
    if (process == processes_.end() || !std::exchange(process->second.frozen, false)) return;
    ++tally_[process->second.failure ? "continues after its loss" : "continues in time"];
    // It learns of its loss, and may end with any status.
    if (process->second.failure && random_.coin()) die(id, random_.coin() ? 0 : 1);
  }
  void lose(WorkerId id) {
    const auto process = processes_.find(id);
    if (process == processes_.end() || !process->second.frozen || !process->second.ready ||
        process->second.failure)
      return;
    ++tally_["is lost"];
    state_failure(id, WorkerLost{id, "the end of its lease"});
  }

  // The host is cut from the network for some time. The connection to it ends before or after the leases.
  void cut_off(const std::string& host) {
    if (!cut_off_.insert(host).second) return;
    ++tally_["host is cut off"];
    for (auto& [id, process] : processes_)
      if (process.start.host == host) {
        freeze(id, process, false);
        if (random_.chance(300)) later(connect_timeout, [this, id = id] { die(id, 255); });
      }
    later(random_.between(1s, 120s), [this, host] { reconnect(host); });
  }
  void reconnect(const std::string& host) {
    if (cut_off_.erase(host) == 0) return;
    for (const auto& [id, process] : std::map(processes_))
      if (process.start.host == host) thaw(id);
  }

  // The store states it now. The driver learns of it later.
  void state_failure(WorkerId id, const Event& failure) {
    processes_.at(id).failure = failure;
    if (reports(failure)) later(random_.up_to(longest_report), [this, failure] { pass(failure); });
  }
  bool reports(const Event& failure) const {
    return fault_ != (std::holds_alternative<WorkerLost>(failure) ? Fault::losses_are_lost
                                                                  : Fault::exclusions_are_lost);
  }

  // The time within which a job must have recovered.
  std::chrono::nanoseconds patience() const {
    return 3 * std::max(options_.blacklist.cooldown, options_.blacklist.max_cooldown) +
           3 * options_.start_timeout + 60s + longest_lease + longest_detection + 3 * longest_report +
           2 * longest_stop;
  }

  // From here on no fault occurs. Either the job has already failed, or it grows to its size and succeeds.
  void calm_down() {
    calm_ = true;
    for (const std::string& host : std::set(cut_off_)) reconnect(host);
    for (const WorkerId id : hung_)
      if (options_.start_timeout == 0s) die(id, 1);
    std::size_t slots = 0;
    for (const HostSlots& host : present_) slots += host.slots;
    if (slots < options_.max_workers && !fixed_) present_.push_back({"spare", options_.max_workers - slots});
    later(patience(), [this] {
      const bool fails =
          !processes_.empty() && std::all_of(processes_.begin(), processes_.end(),
                                             [](const auto& entry) { return entry.second.stopping; });
      ++tally_["calm"];
      // Otherwise the timeout ends the job. Workers whose host has vanished count as long as they continue.
      if (fails || std::max(wanted(), ready()) < options_.min_workers) return;
      if (able() < wanted()) violation("the job has not grown to its size");
      must_succeed_ = true;
      for (const auto& [id, process] : std::map(processes_))
        if (process.ready && !process.stopping) later(random_.up_to(40s), [this, id = id] { die(id, 0); });
    });
  }
  // Hosts that are blacklisted permanently get no new worker, and keep the workers that they have.
  std::size_t wanted() const {
    std::size_t slots = 0;
    for (const HostSlots& host : present_) {
      const auto until = held_until_.find(host.host);
      if (until == held_until_.end() || until->second != ElasticDriver::Time::max()) slots += host.slots;
    }
    for (const auto& [id, process] : processes_) {
      const auto until = held_until_.find(process.start.host);
      if (until != held_until_.end() && until->second == ElasticDriver::Time::max()) ++slots;
    }
    return std::min(slots, options_.max_workers);
  }

  SimWorld& world_;
  SimTally& tally_;
  const Fault fault_;
  SimRandom& random_;
  DriverOptions options_;
  std::unique_ptr<ElasticDriver> driver_;
  std::vector<HostSlots> present_;               // the actual hosts
  std::map<std::string, std::size_t> reported_;  // the hosts that the driver knows
  std::map<WorkerId, Process> processes_;        // until the driver learns of their exit
  std::map<std::string, ElasticDriver::Time> held_until_;
  ElasticDriver::Time reported_since_{0};
  std::map<std::string, std::size_t> hosts_at_the_end_;
  std::vector<WorkerId> hung_;     // at their start
  std::set<std::string> cut_off_;  // hosts
  std::size_t next_host_ = 0;
  std::uint64_t wakes_ = 0, checks_ = 0;
  std::optional<ElasticDriver::Time> short_since_;
  std::uint64_t mortal_ = 0;                // the driver dies in this many of 1,000 events
  std::map<WorkerId, WorkerExited> exits_;  // while no driver runs
  std::set<WorkerId> successes_;            // of these
  bool down_ = false;                       // no driver runs
  bool fixed_ = false;                      // discovery reports the hosts once, as --hosts does
  bool known_ = false, started_ = false, given_up_ = false, calm_ = false, must_succeed_ = false,
       finishing_ = false, finished_ = false;
};

void simulate(SimWorld& world, SimTally& tally, Fault fault = Fault::none, std::size_t most = 16) {
  world.keep(std::make_shared<SimulatedJob>(world, tally, fault, most)).run();
  ++tally["seeds"];
}

TEST(ElasticDriverSimulation, KeepsItsPromises) {
  SimTally tally;
  const auto report =
      weft::test::for_each_seed({.count = weft::test::under_asan ? 200 : weft::test::times(1000),
                                 .test = "ElasticDriverSimulation.KeepsItsPromises"},
                                [&](SimWorld& world) { simulate(world, tally); });
  EXPECT_TRUE(report.ok()) << report.text;
  tally.expect({"start",
                "stop",
                "failure",
                "success",
                "blacklisted",
                "restart",
                "host added",
                "host removed",
                "host dies",
                "hangs at its start",
                "driver dies",
                "action lost",
                "start lost",
                "exit while no driver runs",
                "ended well",
                "fewer than",
                "no worker is left",
                "reset limit",
                "is excluded",
                "makes progress again",
                "is lost",
                "continues after its loss",
                "continues in time",
                "host is cut off",
                "starts on a host that is cut off",
                "stopped on a host that is cut off",
                "failure of a process that runs",
                "failure of a process that has ended"});
}

TEST(ElasticDriverSimulation, KeepsItsPromisesToAThousandWorkers) {
  SimTally tally;
  const auto report =
      weft::test::for_each_seed({.count = weft::test::sanitized ? 1U : 2U,
                                 .test = "ElasticDriverSimulation.KeepsItsPromisesToAThousandWorkers"},
                                [&](SimWorld& world) { simulate(world, tally, Fault::none, 1000); });
  EXPECT_TRUE(report.ok()) << report.text;
}

struct Planted {
  const char* name;
  Fault fault;
  const char* found;  // the report of the simulation
};

class PlantedInTheDriver : public testing::TestWithParam<Planted> {};

INSTANTIATE_TEST_SUITE_P(
    ElasticDriverSimulation, PlantedInTheDriver,
    testing::Values(Planted{"ExitsAreLost", Fault::exits_are_lost, "the job has not"},
                    Planted{"WakesAreLost", Fault::wakes_are_lost, "the job has not"},
                    Planted{"HostsAreReportedLate", Fault::hosts_are_reported_late,
                            "has not grown to its size"},
                    Planted{"StateIsSavedLate", Fault::state_is_saved_late, "disagree"},
                    Planted{"LossesAreLost", Fault::losses_are_lost, "has not grown to its size"},
                    Planted{"ExclusionsAreLost", Fault::exclusions_are_lost, "has not grown to its size"},
                    Planted{"StopsAreLost", Fault::stops_are_lost, "the job has not"}),
    [](const auto& info) { return info.param.name; });

TEST_P(PlantedInTheDriver, AreFoundAndReplayed) {
  SimTally tally;
  weft::test::expect_found_and_replayed(GetParam().found, 300,
                                        [&](SimWorld& world) { simulate(world, tally, GetParam().fault); });
}

}  // namespace
}  // namespace weft::tool::launch::elastic::driver_simulation_test
