// Each event first changes what the driver knows (the take() functions). Then plan() compares the workers
// that run with the slots that may be used, and stops and starts workers. These functions also check for
// failures, the minimum number of workers and the reset limit. Each of these checks may end the job by
// give_up().
#include "tools/weft/launch/elastic/driver.h"

#include <algorithm>

#include "tools/weft/duration.h"

namespace weft::tool::launch::elastic {

ElasticDriver::ElasticDriver(DriverOptions options, Time now)
    : options_(std::move(options)), blacklist_(options_.blacklist, options_.seed), now_(now) {
  state_.short_since = now;
}

Actions ElasticDriver::handle(Time now, const Event& event) {
  if (state_.phase == DriverPhase::ended) return {};
  now_ = now;
  changed_ = expected_ = false;
  std::visit([this](const auto& it) { take(it); }, event);
  if (state_.phase == DriverPhase::waiting || state_.phase == DriverPhase::running) plan();
  if (state_.phase == DriverPhase::running) count_reset();
  if (state_.phase == DriverPhase::waiting || state_.phase == DriverPhase::running) watch_minimum();
  if (state_.phase == DriverPhase::finishing) finish();
  end_if_empty();
  return std::exchange(actions_, {});
}

DriverState ElasticDriver::save() const {
  DriverState state = state_;
  state.blacklist = blacklist_.state();
  return state;
}

// The other driver may have died before it executed its last decisions. Stops are therefore repeated. Starts
// are not repeated, because only the caller knows whether the worker runs.
Actions ElasticDriver::restore(Time now, DriverState state) {
  now_ = now;
  state_ = std::move(state);
  blacklist_.restore(state_.blacklist);
  slots_.clear();
  for (const HostSlots& host : state_.hosts) slots_[host.host] = host.slots;
  if (state_.short_since) state_.short_since = now;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.ready) worker.started = now;
    occupied_[{worker.host, worker.slot}] = id;
    ranks_.insert(worker.rank);
    if (worker.stopping) actions_.push_back(StopWorker{id, "it was stopped before"});
  }
  if (state_.phase == DriverPhase::ended) actions_.push_back(EndJob{state_.failure.empty(), state_.failure});
  return std::exchange(actions_, {});
}

std::size_t ElasticDriver::ready() const {
  return static_cast<std::size_t>(
      std::count_if(state_.workers.begin(), state_.workers.end(),
                    [](const auto& entry) { return entry.second.ready && !entry.second.stopping; }));
}

std::optional<ElasticDriver::Time> ElasticDriver::next_wake() const {
  std::optional<Time> next;
  const auto add = [&](Time when) {
    if (!next || when < *next) next = when;
  };
  if (state_.phase == DriverPhase::finishing && !state_.workers.empty() && state_.finish_by > now_)
    add(state_.finish_by);
  if (state_.phase != DriverPhase::waiting && state_.phase != DriverPhase::running) return next;
  if (state_.short_since) add(*state_.short_since + options_.timeout);
  if (const auto release = blacklist_.next_release()) add(*release);
  if (options_.start_timeout > Time{0})
    for (const auto& [id, worker] : state_.workers)
      if (!worker.ready && !worker.stopping) add(worker.started + options_.start_timeout);
  return next;
}

// --- Events ---

// Hosts that were known before keep their order, and new hosts follow, so that the oldest hosts have the
// lowest ranks.
void ElasticDriver::take(const HostsFound& found) {
  std::map<std::string, std::size_t> slots;
  for (const HostSlots& host : found.hosts)
    if (host.slots != 0) slots[host.host] = host.slots;
  std::vector<HostSlots> hosts;
  for (const HostSlots& host : state_.hosts)
    if (const auto still = slots.find(host.host); still != slots.end())
      hosts.push_back({host.host, still->second});
  for (const HostSlots& host : found.hosts)
    if (slots.contains(host.host) && !slots_.contains(host.host) &&
        std::none_of(hosts.begin(), hosts.end(),
                     [&](const HostSlots& other) { return other.host == host.host; }))
      hosts.push_back({host.host, slots.at(host.host)});
  state_.hosts = std::move(hosts);
  slots_ = std::move(slots);
  state_.discovered = true;
  discovery_fails_ = false;
}

void ElasticDriver::take(const DiscoveryFailed& failed) {
  if (!state_.discovered) return give_up("the first discovery of hosts failed: " + failed.why);
  if (!std::exchange(discovery_fails_, true))
    actions_.push_back(Note{"the discovery of hosts failed, and the known hosts are kept: " + failed.why});
}

void ElasticDriver::take(const WorkerReady& ready) {
  const auto found = state_.workers.find(ready.worker);
  if (found != state_.workers.end() && !found->second.ready) found->second.ready = now_;
}

void ElasticDriver::take(const WorkerExited& exited) {
  const auto found = state_.workers.find(exited.worker);
  if (found == state_.workers.end()) return;
  const DriverWorker worker = std::move(found->second);
  state_.workers.erase(found);
  occupied_.erase({worker.host, worker.slot});
  ranks_.erase(worker.rank);
  expected_ = worker.stopping;
  if (worker.stopping) return;
  if (exited.status != 0) return failed(worker, exited.how, exited.details, exited.blameless);
  if (state_.phase != DriverPhase::running) return;
  state_.phase = DriverPhase::finishing;
  state_.finish_by = now_ + options_.finish_wait;
  if (!state_.workers.empty())
    actions_.push_back(Note{title(worker) + " has succeeded: the other workers have " +
                            text_of(options_.finish_wait) + " to finish"});
}

void ElasticDriver::take(const WorkerExcluded& excluded) {
  stop_failed(excluded.worker, "was excluded by the other workers: " + excluded.why);
}

void ElasticDriver::take(const WorkerLost& lost) { stop_failed(lost.worker, "was lost: " + lost.why); }

void ElasticDriver::take(const Interrupted& interrupted) { give_up(interrupted.why); }

// The worker has failed, and its process may still run.
void ElasticDriver::stop_failed(WorkerId id, const std::string& how) {
  const auto found = state_.workers.find(id);
  if (found == state_.workers.end() || found->second.stopping) return;
  stop(id, found->second, how);
  failed(found->second, how, "", false);
}

// The worker has failed, and either has ended or is being stopped.
void ElasticDriver::failed(const DriverWorker& worker, const std::string& how, const std::string& details,
                           bool blameless) {
  const std::string what = title(worker) + " " + how;
  actions_.push_back(Note{what + details});
  if (state_.phase != DriverPhase::running) return;
  changed_ = true;
  if (!blameless) strike(worker);
  if (!state_.formed || !worker.ready || ready() != 0) return;
  state_.formed = false;
  if (state_.restarts == options_.restarts) return give_up("no worker is left; the last one: " + what);
  ++state_.restarts;
  actions_.push_back(Note{"no worker is left: restart " + std::to_string(state_.restarts) + " of " +
                          std::to_string(options_.restarts)});
}

void ElasticDriver::strike(const DriverWorker& worker) {
  if (!blacklist_.fail(worker.host, now_, worker.ready ? now_ - *worker.ready : Time{0})) return;
  const auto until = blacklist_.until(worker.host);
  actions_.push_back(BlacklistHost{worker.host, until});
  // Moves this host behind all other hosts.
  std::stable_partition(state_.hosts.begin(), state_.hosts.end(),
                        [&](const HostSlots& host) { return host.host != worker.host; });
}

// --- Decisions ---

void ElasticDriver::plan() {
  blacklist_.release(now_);
  if (state_.phase == DriverPhase::waiting) {
    if (!state_.discovered || capacity() < options_.min_workers) return;
    state_.phase = DriverPhase::running;
    return start_workers();
  }
  stop_late_starters();
  stop_displaced();
  start_workers();
  const bool none_left = std::all_of(state_.workers.begin(), state_.workers.end(),
                                     [](const auto& entry) { return entry.second.stopping; });
  if (none_left && all_blacklisted()) give_up("all hosts are blacklisted: " + hosts_text());
}

void ElasticDriver::stop_late_starters() {
  if (options_.start_timeout <= Time{0}) return;
  for (const auto& [id, worker] : state_.workers)
    if (!worker.ready && now_ - worker.started >= options_.start_timeout)
      stop_failed(id, "was not ready " + text_of(options_.start_timeout) + " after its start");
}

// Stops displaced workers if another ready worker has the job's state. If no other ready worker exists, one
// displaced worker is kept until a new worker is ready. If no host is left at all, all workers are kept,
// because the result of discovery may be wrong.
void ElasticDriver::stop_displaced() {
  bool placed_ready = false;
  DriverWorker* keeper = nullptr;
  for (auto& [id, worker] : state_.workers) {
    if (!worker.ready || worker.stopping) continue;
    if (!displaced(worker))
      placed_ready = true;
    else if (keeper == nullptr || worker.rank < keeper->rank)
      keeper = &worker;
  }
  if (!placed_ready && capacity() == 0) return;
  // With max_workers 1 there is no room for a second worker to take over from the first.
  if (placed_ready || options_.max_workers == 1) keeper = nullptr;
  for (auto& [id, worker] : state_.workers)
    if (!worker.stopping && &worker != keeper && displaced(worker))
      stop(id, worker,
           slots_.contains(worker.host)
               ? (blacklist_.holds(worker.host) ? "its host is blacklisted" : "its slot is gone")
               : "its host is gone");
}

void ElasticDriver::start_workers() {
  for (const HostSlots& host : state_.hosts) {
    if (!available(host)) continue;
    for (std::size_t slot = 0; slot < host.slots; ++slot) {
      if (state_.workers.size() >= options_.max_workers) return;
      if (occupied_.contains({host.host, slot})) continue;
      const WorkerId id = ++state_.last_id;
      const std::size_t rank = lowest_free_rank();
      DriverWorker worker{host.host, slot, rank, now_, std::nullopt, false};
      if (options_.start_timeout <= Time{0}) worker.ready = now_;
      occupied_[{host.host, slot}] = id;
      ranks_.insert(rank);
      state_.workers.emplace(id, std::move(worker));
      actions_.push_back(StartWorker{id, host.host, slot, host.slots, rank});
      changed_ = true;
    }
  }
}

// The exit of a worker that was stopped, and the start of its replacement, belong to the reset of the stop.
void ElasticDriver::count_reset() {
  if (!changed_) return;
  const bool first_start = !state_.last_change;
  const bool same = first_start || expected_ || now_ - *state_.last_change <= options_.reset_settle;
  state_.last_change = now_;
  if (same) return;
  ++state_.resets;
  if (options_.reset_limit && state_.resets > *options_.reset_limit)
    give_up("the workers changed more often than the reset limit of " +
            std::to_string(*options_.reset_limit) + " permits");
}

void ElasticDriver::watch_minimum() {
  const std::size_t ready_now = ready();
  if (ready_now >= options_.min_workers) {
    state_.formed = true;
    state_.short_since.reset();
  } else if (!state_.short_since) {
    state_.short_since = now_;
  }
  if (!state_.short_since || now_ - *state_.short_since < options_.timeout) return;
  give_up("fewer than " + std::to_string(options_.min_workers) + " workers for " + text_of(options_.timeout) +
          ": " + std::to_string(ready_now) + " ready, " + hosts_text());
}

void ElasticDriver::finish() {
  const bool late = now_ >= state_.finish_by;
  for (auto& [id, worker] : state_.workers)
    if (!worker.stopping && (late || !worker.ready))
      stop(id, worker, late ? "the job has succeeded" : "the job has succeeded before the worker was ready");
}

void ElasticDriver::give_up(std::string why) {
  if (state_.phase == DriverPhase::giving_up || state_.phase == DriverPhase::ended) return;
  state_.phase = DriverPhase::giving_up;
  state_.failure = std::move(why);
  for (auto& [id, worker] : state_.workers)
    if (!worker.stopping) stop(id, worker, "the job has failed");
}

void ElasticDriver::stop(WorkerId id, DriverWorker& worker, std::string why) {
  worker.stopping = true;
  changed_ = true;
  actions_.push_back(StopWorker{id, std::move(why)});
}

void ElasticDriver::end_if_empty() {
  if (!state_.workers.empty() ||
      (state_.phase != DriverPhase::finishing && state_.phase != DriverPhase::giving_up))
    return;
  const bool success = state_.phase == DriverPhase::finishing;
  state_.phase = DriverPhase::ended;
  actions_.push_back(EndJob{success, state_.failure});
}

// --- What is known ---

bool ElasticDriver::displaced(const DriverWorker& worker) const {
  const auto host = slots_.find(worker.host);
  if (host == slots_.end() || worker.slot >= host->second) return true;
  return options_.evict && blacklist_.holds(worker.host);
}

bool ElasticDriver::available(const HostSlots& host) const { return !blacklist_.holds(host.host); }

std::size_t ElasticDriver::capacity() const {
  std::size_t slots = 0;
  for (const HostSlots& host : state_.hosts)
    if (available(host)) slots += host.slots;
  return slots;
}

bool ElasticDriver::all_blacklisted() const {
  return !state_.hosts.empty() && std::none_of(state_.hosts.begin(), state_.hosts.end(),
                                               [this](const HostSlots& host) { return available(host); });
}

std::size_t ElasticDriver::lowest_free_rank() const {
  std::size_t rank = 0;
  for (const std::size_t taken : ranks_) {
    if (taken != rank) break;
    ++rank;
  }
  return rank;
}

std::string ElasticDriver::title(const DriverWorker& worker) const {
  return "rank " + std::to_string(worker.rank) + " on " + worker.host;
}

std::string ElasticDriver::hosts_text() const {
  if (state_.hosts.empty()) return "no hosts";
  std::string text;
  for (const HostSlots& host : state_.hosts) {
    text += (text.empty() ? "" : ", ") + host.host + " (" + std::to_string(host.slots) +
            (host.slots == 1 ? " slot" : " slots");
    if (blacklist_.holds(host.host)) {
      const auto until = blacklist_.until(host.host);
      text +=
          until ? ", blacklisted for " + text_of(std::max(Time{0}, *until - now_)) : ", blacklisted for good";
    }
    text += ")";
  }
  return text;
}

}  // namespace weft::tool::launch::elastic
