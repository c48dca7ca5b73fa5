// Loop: a single-threaded event loop with a clock, and the mark of the threads that must not block.
//
// Every connection and every call's timers live on one loop. post() may be called from any thread;
// the schedule members, cancel() and run_turn() only on the loop. AsioLoop is the real one; a simulation puts
// its own clock and order here.
#pragma once

#include <weft/rpc/core/exception_sink.h>
#include <weft/rpc/core/executor.h>

#include <asio/execution_context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

namespace weft::rpc {

// The clock of all loops.
using Clock = std::chrono::steady_clock;

// from + wait, without overflow: nanoseconds::max() is a wait for ever.
inline Clock::time_point later(Clock::time_point from, std::chrono::nanoseconds wait) {
  return wait > Clock::time_point::max() - from ? Clock::time_point::max() : from + wait;
}

// What a loop that spins looks at itself, rather than waits to be told of: a ring in shared memory, a socket.
// On the loop's thread.
class WEFT_EXPORT LoopPoller {
 public:
  virtual ~LoopPoller() = default;
  virtual bool poll() = 0;  // runs what is due; false: there was nothing
  // What it waits for is being done by another process: worth a longer wait than the loop's.
  virtual bool expects_soon() const { return false; }
  // The loop goes to sleep: from here on whoever has something to do for it must wake it, by what Asio waits
  // for. false: something is there already.
  virtual bool fall_asleep() = 0;
  virtual void wake_up() = 0;  // and now it polls again
};

class WEFT_EXPORT Loop : public Executor {
 public:
  using TimerId = std::uint64_t;  // 0 is no timer

  std::shared_ptr<ExceptionSink> exceptions() const override { return exceptions_; }

  virtual Clock::time_point now() const = 0;  // on the loop's clock
  // The same clock some milliseconds late, for a fraction of the cost: for ages. Any thread.
  virtual Clock::time_point coarse_now() const { return now(); }
  virtual bool running_here() const = 0;
  virtual TimerId schedule(Clock::time_point when, Callback job) = 0;
  virtual void cancel(TimerId timer) = 0;
  // A timer that a loop which is being stopped still waits for, and does not drop: what bounds an orderly
  // end.
  virtual TimerId schedule_closing(Clock::time_point when, Callback job) {
    return schedule(when, std::move(job));
  }
  // Runs an event that Asio brought to this thread, and then what it posted to this loop: what one arrival
  // causes is done before the next, and without a detour through Asio's queue.
  virtual void run_turn(Callback event) { event(); }
  // Where Asio's own timers and sockets wait that belong to code of this loop's calls.
  virtual asio::execution_context& context() = 0;
  // Whether a thread of its own runs it, which stop() ends, called by one thread at a time and not the
  // loop's. Else it is run by somebody who goes on.
  virtual bool owns_thread() const { return false; }
  virtual void stop() {}

  // Spinning: a loop that has nothing to do polls for a short while before it sleeps. On the loop; where it
  // does not spin, pollers are not looked at, and those concerned wait by Asio's means.
  virtual bool spins() const { return false; }
  // system_call: its poll() is one, and a loop takes only a few such; false: not this one.
  virtual bool add_poller(LoopPoller& poller, bool system_call = false) {
    (void)poller, (void)system_call;
    return false;
  }
  virtual void remove_poller(LoopPoller& poller) { (void)poller; }

 private:
  const std::shared_ptr<ExceptionSink> exceptions_ = std::make_shared<ExceptionSink>();
};

// A thread that an agent owns (a loop's, a handler's) says so for its lifetime, so that a blocking wait on it
// is an error rather than a deadlock. It is a fact about the thread, not a context: nothing is looked up
// through it.
class WEFT_EXPORT OwnedThread {
 public:
  OwnedThread();
  ~OwnedThread();
  OwnedThread(const OwnedThread&) = delete;
  OwnedThread& operator=(const OwnedThread&) = delete;
  static bool here();  // whether this is such a thread
};

}  // namespace weft::rpc
