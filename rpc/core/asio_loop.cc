// A turn (take_turn()) is one event and the jobs that it posts to this loop. Jobs from other threads are
// collected in `inbox`, and the loop takes all of them at once. One Asio timer, set to the earliest time,
// serves all timers.
//
// Other threads wake a loop with its own thread by an eventfd, and not by asio::post(), which wakes the
// thread while it holds the lock that the thread needs first. They need not wake a loop that polls.
//
// If several threads run the program's io_context, Hold lets one of them at a time take turns: the others
// wait. A loop with its own thread needs no Hold.
//
// A loop's own thread alternates between polling and blocking (run_thread()). poll_for() polls the pollers,
// and at intervals Asio, until the time of SpinPolicy::bound() passes without an event. Then the pollers are
// put to sleep: they request a wake-up of the loop from Asio or from their peer. The thread then blocks in
// Asio until the next event. While the policy pauses spinning, run_paused() runs the loop without polling.
#include <weft/rpc/core/asio_loop.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/spin_policy.h>

#include <asio/buffer.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <vector>

namespace weft::rpc {
namespace {

constexpr std::size_t max_jobs_a_turn = 256;        // after these, other Asio handlers run
constexpr unsigned looks_between_clocks = 8;        // polls of the pollers without work
constexpr std::size_t max_handlers_a_poll = 64;     // of Asio, before the pollers are polled again
constexpr unsigned polls_between_looks = 64;        // of Asio, which is a system call, if there are pollers
constexpr unsigned costly_polls_between_looks = 8;  // the same, if a poller's poll() is also a system call
constexpr std::size_t max_costly_pollers = 4;
constexpr auto longest_spin = std::chrono::milliseconds{2};  // the polling time if a poller expects work soon
constexpr auto first_yield = std::chrono::microseconds{4};   // the time without work before the first yield
constexpr unsigned turns_between_looks = 32;                 // at the clock, while the policy pauses spinning
// Counted in polls with work; without these yields a busy loop would never yield.
constexpr unsigned works_between_yields = 64;

int make_eventfd() {
  const int made = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return made;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct AsioLoop::State : std::enable_shared_from_this<State> {
  using TimerKey = std::pair<Clock::time_point, TimerId>;
  struct Timer {
    Callback job;
    bool closing;  // stop() does not drop it
  };

  explicit State(std::shared_ptr<ExceptionSink> sink)
      : exceptions(std::move(sink)),
        own(std::in_place, 1),
        context(*own),
        work(std::in_place, context.get_executor()),
        timer(context),
        wake(std::in_place, context, make_eventfd()),
        wake_fd(wake->native_handle()) {}
  State(std::shared_ptr<ExceptionSink> sink, asio::io_context& program)
      : exceptions(std::move(sink)), context(program), timer(context) {}

  // --- Turns ---

  // While a Hold exists, its thread has the loop. Another Hold within it has no effect.
  class Hold {
   public:
    explicit Hold(State& state) : state_(state.own || state.held_here() ? nullptr : &state) {
      if (state_ == nullptr) return;
      state_->turns_mutex.lock();
      state_->thread = std::this_thread::get_id();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
      if (state_ == nullptr) return;
      state_->thread = std::thread::id();
      state_->turns_mutex.unlock();
    }

   private:
    State* const state_;
  };
  bool held_here() const { return thread.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  void turn(Callback event) {
    take_turn([&] {
      event();
      event = nullptr;
    });
  }
  template <class Event>
  void take_turn(const Event& event) {
    const Hold hold(*this);
    if (in_turn) return event();
    in_turn = true;
    run(event);
    for (std::size_t i = 0; i < max_jobs_a_turn && !ready.empty(); ++i) {
      Callback job = ready.pop();
      run(job);
    }
    in_turn = false;
    if (!ready.empty() && !std::exchange(rest_due, true)) asio::post(context, Rest(shared_from_this()));
    if (paused && ++turns % turns_between_looks == 0 && Clock::now() >= policy.paused_until()) end_pause();
  }

  // Catches an exception of a job, so that the turn, the timers and the io_context continue.
  template <class Callable>
  void run(Callable& job) {
    try {
      job();
    } catch (...) {
      exceptions->take("a task of the event loop", std::current_exception());
    }
  }

  // A handler for the jobs that are left after a turn. If the program's io_context is destroyed without
  // running again, the destructor destroys these jobs, because they may own this loop.
  class Rest {
   public:
    explicit Rest(std::shared_ptr<State> state) : state_(std::move(state)) {}
    Rest(Rest&&) noexcept = default;
    Rest& operator=(Rest&&) = delete;
    ~Rest() {
      if (state_ == nullptr) return;
      const Fifo<Callback> dropped = std::exchange(state_->ready, {});
    }
    void operator()() {
      const auto state = std::move(state_);
      const Hold hold(*state);
      state->rest_due = false;
      state->turn([] {});
    }

   private:
    std::shared_ptr<State> state_;
  };

  // --- Jobs from other threads, for a loop with its own thread ---

  void submit(Callback job) {
    bool is_awaited = false;
    {
      MutexLock lock(mutex);
      inbox.push(std::move(job));
      if (has_jobs.exchange(true)) return;
      is_awaited = awaits_wake;
    }
    if (!is_awaited) return asio::post(context, [self = shared_from_this()] { self->collect(); });
    if (polls) return;
    const std::uint64_t one = 1;
    (void)!::write(wake_fd, &one, sizeof one);  // fails only if the loop is woken already
  }
  bool collect() {
    Fifo<Callback> jobs;
    {
      MutexLock lock(mutex);
      std::swap(jobs, inbox);
      has_jobs = false;
    }
    const bool any = !jobs.empty();
    while (!jobs.empty()) turn(jobs.pop());
    return any;
  }
  void await_wake() {
    wake->async_read_some(asio::buffer(&wakes, sizeof wakes),
                          [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                            if (error) return;
                            self->collect();
                            if (!self->stopping) self->await_wake();
                          });
  }
  // The wait would keep the io_context running. After drop_timers().
  void end_wake() {
    {
      MutexLock lock(mutex);
      awaits_wake = false;
    }
    wake->cancel();
    collect();
  }

  // --- Timers: one Asio timer for all, armed for the earliest ---

  void arm() {
    if (entries.empty()) return;
    const Clock::time_point first = entries.begin()->first.first;
    if (armed && *armed <= first) return;
    armed = first;
    timer.expires_at(first);
    timer.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->expire();
    });
  }
  void disarm() {
    armed.reset();
    timer.cancel();
  }
  // Keeps the timers of schedule_closing(), and lets no other timer be made any more. The destructor of a
  // timer's job may fail a future, whose continuations may schedule or cancel timers.
  void drop_timers() {
    stopping = true;
    std::vector<Callback> dropped;
    for (auto entry = entries.begin(); entry != entries.end();) {
      if (entry->second.closing) {
        ++entry;
        continue;
      }
      when.erase(entry->first.second);
      dropped.push_back(std::move(entry->second.job));
      entry = entries.erase(entry);
    }
    if (entries.empty()) disarm();
    for (Callback& job : dropped) turn([job = std::move(job)] {});
  }
  TimerId add_timer(Clock::time_point time, Callback job, bool closing = false) {
    const TimerId id = ++last;
    entries.emplace(TimerKey{time, id}, Timer{std::move(job), closing});
    when.emplace(id, time);
    arm();
    return id;
  }
  void expire() {
    const Hold hold(*this);
    armed.reset();
    const Clock::time_point now = Clock::now();
    while (!entries.empty() && entries.begin()->first.first <= now) {
      auto node = entries.extract(entries.begin());
      when.erase(node.key().second);
      turn(std::move(node.mapped().job));
    }
    arm();
  }

  // --- The loop's own thread ---

  void run_thread() {
    thread = std::this_thread::get_id();
    await_wake();
    if (!policy.spins()) context.run();
    bool due = false;  // a poller did not fall asleep, because it has work
    Clock::time_point now = Clock::now();
    while (!context.stopped()) {
      const auto bound = policy.bound(now);
      if (bound.count() > 0 || due) {
        wake_pollers();
        polls = true;
        poll_for(bound);
        polls = false;
        if (has_jobs) collect();
        now = Clock::now();
      }
      due = !put_pollers_to_sleep();
      if (due || context.stopped()) continue;
      if (now < policy.paused_until()) {
        run_paused();
        now = Clock::now();
        continue;
      }
      const Clock::time_point asleep_since = now;
      context.run_one();
      now = Clock::now();
      policy.slept(now - asleep_since);
    }
    thread = std::thread::id();
  }
  // Runs events like a loop that never spins, until the pause ends. take_turn() checks the time only after
  // several turns, because reading the clock for each event would cost 2 % of the throughput.
  void run_paused() {
    paused = true;
    context.run();
    // If `paused` was true, the io_context ran out of work.
    if (!std::exchange(paused, false)) context.restart();
  }
  void end_pause() {
    if (std::exchange(paused, false)) context.stop();
  }
  void poll_for(std::chrono::nanoseconds bound) {
    bool idle = false;  // no work since `since`
    Clock::time_point since{}, looked{};
    for (unsigned i = 0;; ++i) {
      bool worked = has_jobs.load(std::memory_order_relaxed) && collect();
      for (std::size_t p = 0; p < pollers.size(); ++p) take_turn([&] { worked |= pollers[p]->poll(); });
      if (pollers.empty() ||
          i % (costly_pollers == 0 ? polls_between_looks : costly_polls_between_looks) == 0) {
        if (context.stopped()) return;
        worked |= poll_asio();
      }
      if (worked) {
        if (idle) policy.found();
        idle = false;
        if (policy.yields() && ++works % works_between_yields == 0 && !yield(Clock::now())) return;
        continue;
      }
      if (i % looks_between_clocks == 0) {
        const Clock::time_point now = Clock::now();
        if (!std::exchange(idle, true)) since = looked = now;
        if (policy.yields() && !policy.looked(now, now - std::exchange(looked, now))) return;
        const bool soon = std::any_of(pollers.begin(), pollers.end(),
                                      [](const LoopPoller* poller) { return poller->expects_soon(); });
        if (now - since > (soon ? std::max<std::chrono::nanoseconds>(bound, longest_spin) : bound))
          return policy.missed();
        if (policy.yields() && now - since > first_yield) {
          const auto back = yield(now);
          if (!back) return;
          looked = *back;
        }
      }
      pause();
    }
  }
  // nullopt: stop polling, because another thread needs the core.
  std::optional<Clock::time_point> yield(Clock::time_point now) {
    ::sched_yield();
    const Clock::time_point back = Clock::now();
    return policy.yielded(back, back - now) ? std::optional(back) : std::nullopt;
  }
  // Uses poll_one(), because poll() does not return as long as handlers make other handlers ready, and the
  // pollers must be polled in between.
  bool poll_asio() {
    std::size_t ran = 0;
    while (ran < max_handlers_a_poll && context.poll_one() != 0) ++ran;
    return ran != 0;
  }
  // Pollers that are asleep stay asleep until the loop polls again. false: a poller has work.
  bool put_pollers_to_sleep() {
    if (asleep.size() == pollers.size()) return true;
    for (LoopPoller* poller : pollers) {
      if (std::find(asleep.begin(), asleep.end(), poller) != asleep.end()) continue;
      asleep.push_back(poller);
      if (poller->fall_asleep()) continue;
      asleep.pop_back();
      return false;
    }
    return true;
  }
  void wake_pollers() {
    for (LoopPoller* poller : std::exchange(asleep, {})) poller->wake_up();
  }

  const std::shared_ptr<ExceptionSink> exceptions;
  std::optional<asio::io_context> own;
  asio::io_context& context;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;

  // The loop's own thread, or the thread that has the program's io_context for its turn.
  std::atomic<std::thread::id> thread{};
  std::mutex turns_mutex;  // locked by Hold

  // Used on the loop's thread.
  bool in_turn = false;
  Fifo<Callback> ready;  // posted in the current turn
  bool rest_due = false;
  asio::steady_timer timer;
  std::map<TimerKey, Timer> entries;
  std::unordered_map<TimerId, Clock::time_point> when;
  std::optional<Clock::time_point> armed;
  TimerId last = 0;
  bool stopping = false;  // only timers of schedule_closing() may be made
  std::vector<LoopPoller*> pollers;
  std::size_t costly_pollers = 0;  // at the end of pollers
  std::vector<LoopPoller*> asleep;
  SpinPolicy policy{std::chrono::nanoseconds{0}};  // set before the thread starts
  unsigned works = 0;                              // polls with work
  bool paused = false;                             // until the policy's pause ends
  unsigned turns = 0;                              // while paused

  Mutex mutex;
  Fifo<Callback> inbox WEFT_GUARDED_BY(mutex);
  bool awaits_wake WEFT_GUARDED_BY(mutex) = true;  // false: the loop ends
  std::atomic<bool> has_jobs{false};               // the inbox is not empty; set with the mutex locked
  // The loop's thread polls: it looks at has_jobs after it has set this to false, and a thread that submits a
  // job looks at this after it has set has_jobs, so one of them sees the other.
  std::atomic<bool> polls{false};
  std::optional<asio::posix::stream_descriptor> wake;  // null: on the program's io_context
  const int wake_fd = -1;                              // its number, for other threads
  std::uint64_t wakes = 0;                             // what is read of it
};

AsioLoop::AsioLoop(std::optional<std::chrono::nanoseconds> spin)
    : state_(std::make_shared<State>(exceptions())), context_(state_->context), own_(true) {
  // All online CPUs, even if the calling thread may not use all of them, because a peer may run on the other
  // CPUs. If the loop and the peer share one CPU, the yields detect this.
  state_->policy = SpinPolicy(spin, static_cast<unsigned>(::get_nprocs()));
  thread_ = std::thread([state = state_] {
    OwnedThread mark;
    state->run_thread();
  });
}

AsioLoop::AsioLoop(asio::io_context& context)
    : state_(std::make_shared<State>(exceptions(), context)), context_(context), own_(false) {}

AsioLoop::~AsioLoop() { stop(); }

void AsioLoop::stop() {
  if (!own_ || !thread_.joinable()) return;
  asio::post(context_, [weak = std::weak_ptr(state_)] {
    const auto state = weak.lock();
    if (state == nullptr) return;
    state->collect();  // jobs that were posted before may need their timers
    state->drop_timers();
    state->end_wake();
    state->work.reset();
  });
  if (running_here()) {
    thread_.detach();  // the last owner was destroyed on the loop's thread, which ends after this job
    return;
  }
  thread_.join();
  stopped_ = true;
  if (late_jobs_++ == 0) run_late_jobs();  // jobs posted between the end of the thread and the line above
}

void AsioLoop::post(Callback job) {
  if (running_here() && state_->in_turn) return state_->ready.push(std::move(job));
  if (own_) {
    state_->submit(std::move(job));
  } else {
    asio::post(context_, [state = state_, job = std::move(job)]() mutable { state->turn(std::move(job)); });
  }
  if (!stopped_) return;
  if (late_jobs_++ == 0) run_late_jobs();
}

// The thread that posts the first late job runs the late jobs of all threads, until no more are posted.
void AsioLoop::run_late_jobs() {
  std::size_t seen;
  do {
    seen = late_jobs_;
    context_.restart();
    asio::post(context_, [this] { state_->collect(); });
    context_.poll();
  } while (late_jobs_.fetch_sub(seen) != seen);
}

// Asio considers a thread as running only within run(). A thread that spins is outside run(), so this
// function also compares the id of the loop's thread. After stop(), any thread may run late jobs.
bool AsioLoop::running_here() const { return state_->held_here() || (own_ && runs_on_this_thread()); }

bool AsioLoop::runs_on_this_thread() const {
  return state_->held_here() || context_.get_executor().running_in_this_thread();
}

// CLOCK_MONOTONIC_COARSE is the value of std::chrono::steady_clock (CLOCK_MONOTONIC) at the kernel's last
// tick.
Clock::time_point AsioLoop::coarse_now() const {
  timespec time{};
  if (::clock_gettime(CLOCK_MONOTONIC_COARSE, &time) != 0) return now();
  return Clock::time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

void AsioLoop::run_turn(Callback event) { state_->turn(std::move(event)); }

Loop::TimerId AsioLoop::schedule(Clock::time_point when, Callback job) {
  return state_->stopping ? 0 : state_->add_timer(when, std::move(job));
}

Loop::TimerId AsioLoop::schedule_closing(Clock::time_point when, Callback job) {
  return state_->add_timer(when, std::move(job), true);
}

void AsioLoop::cancel(TimerId id) {
  const auto entry = state_->when.find(id);
  if (entry == state_->when.end()) return;
  state_->entries.erase(State::TimerKey{entry->second, id});
  state_->when.erase(entry);
  // Otherwise the program's io_context would wait for the timer.
  if (state_->entries.empty()) state_->disarm();
}

bool AsioLoop::spins() const { return state_->policy.spins(); }
bool AsioLoop::add_poller(LoopPoller& poller, bool system_call) {
  if (!spins() || (system_call && state_->costly_pollers == max_costly_pollers)) return false;
  state_->end_pause();  // the poller must be put to sleep before the next pause
  auto& all = state_->pollers;
  if (system_call) {
    all.push_back(&poller);
    ++state_->costly_pollers;
  } else {
    all.insert(all.begin(), &poller);
  }
  return true;
}
void AsioLoop::remove_poller(LoopPoller& poller) {
  auto& all = state_->pollers;
  const auto found = std::find(all.begin(), all.end(), &poller);
  if (found == all.end()) return;
  std::erase(state_->asleep, &poller);
  if (static_cast<std::size_t>(all.end() - found) <= state_->costly_pollers) --state_->costly_pollers;
  all.erase(found);
}

asio::io_context& io_context_of(Loop& loop) {
  auto* asio = dynamic_cast<AsioLoop*>(&loop);
  if (asio == nullptr)
    throw Error(ErrorKind::invalid_argument,
                "io_context_of: expected an AsioLoop, found another kind of loop");
  return asio->context();
}

}  // namespace weft::rpc
