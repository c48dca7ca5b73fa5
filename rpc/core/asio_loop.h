// AsioLoop: a Loop over an asio::io_context, weft's own (run by a thread that it starts) or the program's.
//
// Owned by an agent through shared_ptr; pending futures hold it too. stop() ends the own thread, once nothing
// is under way on the io_context but timers, which are dropped; jobs posted later run at once on the thread
// that posts them, one at a time, so that none is lost and a call made too late still ends. On the program's
// io_context nothing is stopped.
#pragma once

#include <weft/rpc/core/loop.h>

#include <asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <thread>

namespace weft::rpc {

class WEFT_EXPORT AsioLoop final : public Loop, public std::enable_shared_from_this<AsioLoop> {
 public:
  AsioLoop();                                    // with an io_context and a thread of its own
  explicit AsioLoop(asio::io_context& context);  // on the program's
  ~AsioLoop() override;

  void post(Job job) override;
  Clock::time_point now() const override { return Clock::now(); }
  bool running_here() const override;
  TimerId schedule(Clock::time_point when, Job job) override;
  void cancel(TimerId timer) override;

  asio::io_context& context() override { return context_; }
  bool owns_thread() const { return own_ != nullptr; }
  void stop();  // idempotent; one thread at a time, not the loop's

 private:
  struct Timers;
  struct Own;

  void run_late_jobs();

  std::shared_ptr<Own> own_;  // shared with its thread, which may outlive the loop by a moment
  asio::io_context& context_;
  // One Asio timer for all: only the earliest entry arms it. Shared with its handler, which may outlive the
  // loop.
  std::shared_ptr<Timers> timers_;
  std::thread thread_;
  std::atomic<bool> stopped_{false};
  std::atomic<std::size_t> late_jobs_{0};  // posted since stop(), or about to be run
};

}  // namespace weft::rpc
