// AsioLoop: a Loop over an asio::io_context. Either the loop owns the io_context and a thread that runs it,
// or the program owns and runs the io_context.
//
// Owned by an agent through shared_ptr; pending futures share the ownership. Several threads may run the
// program's io_context: one of them at a time takes a turn of the loop, and the others wait. stop() drops the
// timers, except those of schedule_closing(); a timer that schedule() would make later is dropped at once. It
// ends the loop's own thread when no other work is pending on the io_context. Jobs that are posted after
// stop() run at once on one of the threads that post them, one job at a time, so that no job is lost. stop()
// does not stop a program's io_context. A loop with its own thread may spin: without work it polls for a
// short time before it blocks, which saves the wake-up (spin_policy.h).
#pragma once

#include <weft/rpc/core/loop.h>

#include <asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

namespace weft::rpc {

class WEFT_EXPORT AsioLoop final : public Loop {
 public:
  // A loop with its own io_context and thread. spin: how long the loop polls before it blocks; nullopt:
  // adaptive.
  explicit AsioLoop(std::optional<std::chrono::nanoseconds> spin = std::chrono::nanoseconds{0});
  explicit AsioLoop(asio::io_context& context);  // on the program's io_context
  ~AsioLoop() override;

  void post(Callback job) override;
  Clock::time_point now() const override { return Clock::now(); }
  Clock::time_point coarse_now() const override;
  bool running_here() const override;
  bool runs_on_this_thread() const override;
  TimerId schedule(Clock::time_point when, Callback job) override;
  void cancel(TimerId timer) override;
  TimerId schedule_closing(Clock::time_point when, Callback job) override;
  void run_turn(Callback event) override;

  bool spins() const override;
  bool add_poller(LoopPoller& poller, bool system_call = false) override;
  void remove_poller(LoopPoller& poller) override;

  asio::io_context& context() override { return context_; }
  bool owns_thread() const override { return own_; }
  void stop() override;  // idempotent

 private:
  struct State;

  void run_late_jobs();

  // Shared with the loop's thread and with handlers in the io_context, which may exist a little longer than
  // the loop.
  std::shared_ptr<State> state_;
  asio::io_context& context_;
  const bool own_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  std::atomic<std::size_t> late_jobs_{0};  // jobs posted after stop() that have not run
};

// The io_context for sockets of `loop`. Throws invalid_argument if `loop` is not an AsioLoop.
WEFT_EXPORT asio::io_context& io_context_of(Loop& loop);

}  // namespace weft::rpc
