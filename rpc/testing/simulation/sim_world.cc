// One step runs one job: step() looks for the earliest time at which an event of the world, or a job of a
// runner, is due, and advances the clock to it. Between jobs that are due at the same time it chooses at
// random, in one pass (each new candidate replaces the k-1 earlier ones with probability 1/k). All random
// numbers derive from the seed, so a seed determines the whole run.
#include <weft/rpc/testing/simulation/sim_world.h>

#include <algorithm>

namespace weft::test {

using rpc::Clock;

namespace {

// Not the clock's zero, which programs may use for "never".
constexpr Clock::time_point beginning{std::chrono::seconds{1}};

}  // namespace

SimWorld::SimWorld(std::uint64_t seed, SimOptions options)
    : seed_(seed),
      options_(options),
      random_(seed),
      order_(random_.split()),
      trace_(options.trace, options.live_trace),
      now_(beginning),
      network_(*this, options.weather, random_.split()) {}

SimWorld::~SimWorld() {
  for (const auto& process : processes_) process->stop();
  network_.end();
  for (const auto& process : processes_) process->clear();
  while (!kept_.empty() || !events_.empty()) {
    const auto events = std::exchange(events_, {});
    if (kept_.empty()) continue;
    const auto last = std::move(kept_.back());
    kept_.pop_back();
  }
  for (const auto& process : processes_) process->detach(now_);
}

// --- Processes ---

SimProcess& SimWorld::start(const std::string& name) {
  if (find(name) != nullptr) throw SimFailure("'" + name + "' is already running");
  processes_.emplace_back(new SimProcess(*this, name, processes_.size() + 1));
  trace_.add(now_, "start", processes_.back()->name(), processes_.back()->incarnation());
  return *processes_.back();
}

SimProcess* SimWorld::find(const std::string& name) {
  for (const auto& process : processes_)
    if (process->alive() && process->name() == name) return process.get();
  return nullptr;
}

void SimWorld::crash(SimProcess& process, SimCrash how) {
  if (!process.alive()) return;
  trace_.add(now_, how == SimCrash::process ? "crash" : "crash of host", process.name(),
             process.incarnation());
  process.stop();
  network_.crashed(process, how);
}

// --- Running ---

void SimWorld::at(Clock::time_point when, rpc::Callback job) {
  events_.push_back({std::max(when, now_), order_.next(), ++last_event_, std::move(job)});
  std::push_heap(events_.begin(), events_.end());
}

bool SimWorld::step(Clock::time_point until) {
  Clock::time_point first = Clock::time_point::max();
  SimRunner* chosen = nullptr;
  bool event = false;
  std::uint64_t rivals = 0;
  const auto consider = [&](Clock::time_point due) {
    if (due == Clock::time_point::max()) return false;
    due = std::max(due, now_);  // late jobs have no precedence: threads do not wait in a queue
    if (due > first) return false;
    rivals = due < first ? 1 : rivals + 1;
    first = due;
    return rivals == 1 || order_.below(rivals) == 0;
  };
  if (!events_.empty()) event = consider(events_.front().when);
  for (const auto& process : processes_) {
    if (!process->alive()) continue;
    for (const auto& runner : process->runners_) {
      const Clock::time_point due = runner->due();
      if (due == Clock::time_point::max() || !consider(std::max(due, runner->busy_until_))) continue;
      chosen = runner.get();
      event = false;
    }
  }
  if (rivals == 0 || first > until) {
    if (until != Clock::time_point::max()) now_ = std::max(now_, until);
    return false;
  }
  now_ = first;
  if (++steps_ > options_.max_steps)
    throw SimFailure("the simulation has not ended after " + std::to_string(options_.max_steps) + " steps");
  if (event) {
    run_event();
  } else {
    run(*chosen);
  }
  return true;
}

void SimWorld::run_event() {
  std::pop_heap(events_.begin(), events_.end());
  rpc::Callback job = std::move(events_.back().job);
  events_.pop_back();
  rpc::OwnedThread mark;
  job();
}

void SimWorld::run(SimRunner& runner) {
  struct Running {
    const SimRunner*& place;
    ~Running() { place = nullptr; }
  } running{running_};
  trace_.add(now_, "run", runner.name());
  rpc::OwnedThread mark;  // blocking on something that this thread must do is an error
  running_ = &runner;
  rpc::Callback job = runner.take();
  job();
  job = nullptr;
  runner.busy_until_ = now_ + order_.up_to(pace().longest_job);
  if (pace().stalls != 0 && order_.chance(pace().stalls))
    runner.busy_until_ += order_.up_to(pace().longest_stall);
}

void SimWorld::run_for(std::chrono::nanoseconds span) {
  const Clock::time_point end = rpc::later(now_, span);
  while (step(end)) {
  }
}

bool SimWorld::run_until(const std::function<bool()>& done, std::chrono::nanoseconds timeout) {
  const Clock::time_point end = rpc::later(now_, timeout);
  while (!done())
    if (!step(end)) return done();
  return true;
}

bool SimWorld::run_until_idle(std::chrono::nanoseconds horizon) {
  const Clock::time_point end = rpc::later(now_, horizon);
  for (;;) {
    const Clock::time_point before = now_;
    if (step(end)) continue;
    const bool idle =
        events_.empty() && std::all_of(processes_.begin(), processes_.end(), [](const auto& process) {
          return !process->alive() ||
                 std::all_of(process->runners_.begin(), process->runners_.end(),
                             [](const auto& runner) { return runner->due() == Clock::time_point::max(); });
        });
    if (idle) now_ = before;  // nothing happened, so no time has passed
    return idle;
  }
}

void SimWorld::violation(std::string text) {
  trace_.note(now_, "VIOLATION: " + text);
  if (violations_.size() < 10) violations_.push_back(std::move(text));
}

}  // namespace weft::test
