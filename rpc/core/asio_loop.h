// AsioLoop: a Loop over an asio::io_context, weft's own (run by a thread that it starts) or the program's.
//
// Owned by an agent through shared_ptr; pending futures hold it too. One thread at a time runs it. stop()
// ends the own thread, once nothing is under way on the io_context but timers, which are dropped; jobs posted
// later run at once on the thread that posts them, one at a time, so that none is lost and a call made too
// late still ends. On the program's io_context nothing is stopped. A loop of weft's own may spin: without
// work it polls for a short while before it sleeps, which saves a call the wake-up (spin_policy.h).
#pragma once

#include <weft/rpc/core/loop.h>

#include <asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

namespace weft::rpc {

class WEFT_EXPORT AsioLoop final : public Loop, public std::enable_shared_from_this<AsioLoop> {
 public:
  // With its own io_context and thread. spin: how long to poll before it sleeps; none: it adapts.
  explicit AsioLoop(std::optional<std::chrono::nanoseconds> spin = std::chrono::nanoseconds{0});
  explicit AsioLoop(asio::io_context& context);  // on the program's
  ~AsioLoop() override;

  void post(Callback job) override;
  Clock::time_point now() const override { return Clock::now(); }
  Clock::time_point coarse_now() const override;
  bool running_here() const override;
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

  // Shared with its thread, and with what waits in the io_context, which may both outlive the loop by a
  // moment.
  std::shared_ptr<State> state_;
  asio::io_context& context_;
  const bool own_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  std::atomic<std::size_t> late_jobs_{0};  // posted since stop(), or about to be run
};

// Where sockets of that loop wait. Throws invalid_argument for a loop that is not Asio's.
WEFT_EXPORT asio::io_context& io_context_of(Loop& loop);

}  // namespace weft::rpc
