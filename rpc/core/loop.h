// Loop: a single-threaded event loop with a clock. OwnedThread: marks threads that must not block.
//
// Every connection and every call's timers belong to one loop. post(), dispatch() and schedule_after() may be
// called from any thread. Call schedule(), schedule_closing(), cancel() and run_turn() only on the loop.
// AsioLoop is the implementation for production; simulations have a loop with their own clock and order.
#pragma once

#include <weft/rpc/core/executor.h>

#include <asio/execution_context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace weft::rpc {

// The clock of all loops.
using Clock = std::chrono::steady_clock;

// from + wait, without overflow: nanoseconds::max() is an infinite wait.
inline Clock::time_point later(Clock::time_point from, std::chrono::nanoseconds wait) {
  return wait > Clock::time_point::max() - from ? Clock::time_point::max() : from + wait;
}

// A source of events that a spinning loop polls: a ring in shared memory, or a socket. Its functions are
// called on the loop's thread.
class WEFT_EXPORT LoopPoller {
 public:
  virtual ~LoopPoller() = default;
  virtual bool poll() = 0;  // runs ready work; false: no work was ready
  // Whether another process is producing the event for which this source waits. If so, the loop polls for a
  // longer time.
  virtual bool expects_soon() const { return false; }
  // The loop is about to block: from now on the source must wake the loop through Asio. false: work is ready,
  // and the loop must not block.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() = 0;  // the loop polls again
};

class WEFT_EXPORT Loop : public Executor {
 public:
  using TimerId = std::uint64_t;  // 0 is no timer

  std::shared_ptr<ExceptionSink> exceptions() const override { return exceptions_; }

  virtual Clock::time_point now() const = 0;  // the time of the loop's clock
  // Like now(), but cheaper, and up to a few milliseconds late; for measuring ages. Any thread.
  virtual Clock::time_point coarse_now() const { return now(); }
  // Whether the calling thread is in a turn of the loop, or is the loop's own thread.
  virtual bool running_here() const = 0;
  // Whether the calling thread runs the loop, so that a blocking wait on it delays the loop: as
  // running_here(), or in any handler of the program's io_context.
  virtual bool runs_on_this_thread() const { return running_here(); }
  // Runs the job on the loop at that time. After stop(), the job is destroyed instead, and 0 is returned.
  virtual TimerId schedule(Clock::time_point when, Callback job) = 0;
  virtual void cancel(TimerId timer) = 0;
  // From any thread: runs the job at once if this is the loop's thread, otherwise posts it.
  template <class Job>
  void dispatch(Job job) {
    running_here() ? job() : post(std::move(job));
  }
  // From any thread: runs the job when `wait` has passed since this call. The posted job does not own the
  // loop, because the loop may never run it.
  void schedule_after(std::chrono::nanoseconds wait, Callback job) {
    dispatch([this, when = later(now(), wait), job = std::move(job)]() mutable {
      schedule(when, std::move(job));
    });
  }
  // Like schedule(), but stop() waits for the timer instead of dropping it. For timers that limit the
  // duration of a graceful close.
  virtual TimerId schedule_closing(Clock::time_point when, Callback job) {
    return schedule(when, std::move(job));
  }
  // Runs an event that Asio has delivered on this thread, then the jobs that the event has posted to this
  // loop. So these jobs run before the next event, and do not pass through Asio's queue. Each handler that
  // Asio calls must use it, because several threads may run the program's io_context.
  virtual void run_turn(Callback event) { event(); }
  // The execution context for Asio's timers and sockets in handlers of calls on this loop.
  virtual asio::execution_context& context() = 0;
  // Whether the loop has its own thread, which runs it. stop() ends that thread; call stop() on another
  // thread, and only on one thread at a time. Without its own thread, the program runs the loop, even after
  // stop().
  virtual bool owns_thread() const { return false; }
  virtual void stop() {}

  // Spinning: a loop without work polls for a short time before it blocks. Call these functions on the loop.
  // If the loop does not spin, add_poller() returns false, and the caller waits through Asio.
  virtual bool spins() const { return false; }
  // system_call: poll() is a system call; a loop accepts only a few such pollers. false: not accepted.
  virtual bool add_poller(LoopPoller& poller, bool system_call = false) {
    (void)poller, (void)system_call;
    return false;
  }
  virtual void remove_poller(LoopPoller& poller) { (void)poller; }

 private:
  const std::shared_ptr<ExceptionSink> exceptions_ = std::make_shared<ExceptionSink>();
};

// While an OwnedThread exists, its thread is marked as a thread of an agent (of a loop or of the handlers). A
// blocking wait on a marked thread throws instead of causing a deadlock. The mark carries no data: code can
// only check whether the thread is marked.
class WEFT_EXPORT OwnedThread {
 public:
  OwnedThread();
  ~OwnedThread();
  OwnedThread(const OwnedThread&) = delete;
  OwnedThread& operator=(const OwnedThread&) = delete;
  static bool here();  // whether the calling thread is marked
};

}  // namespace weft::rpc
