// Loop: a single-threaded event loop with a clock, and the mark of the threads that must not block.
//
// Every connection and every call's timers live on one loop. post() may be called from any thread; schedule()
// and cancel() only on the loop. AsioLoop is the real one; a simulation puts its own clock and order here.
#pragma once

#include <weft/rpc/core/executor.h>

#include <asio/execution_context.hpp>

#include <chrono>
#include <cstdint>

namespace weft::rpc {

using Clock = std::chrono::steady_clock;

// from + wait, without overflow: nanoseconds::max() is a wait for ever.
inline Clock::time_point later(Clock::time_point from, std::chrono::nanoseconds wait) {
  return wait > Clock::time_point::max() - from ? Clock::time_point::max() : from + wait;
}

class WEFT_EXPORT Loop : public Executor {
 public:
  using TimerId = std::uint64_t;  // 0 is no timer

  virtual Clock::time_point now() const = 0;
  virtual bool running_here() const = 0;
  virtual TimerId schedule(Clock::time_point when, Job job) = 0;
  virtual void cancel(TimerId timer) = 0;
  // Where Asio's own timers and sockets wait that belong to code of this loop's calls.
  virtual asio::execution_context& context() = 0;
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
  static bool here();
};

}  // namespace weft::rpc
