// HandLoop: a Loop, or an Executor, that the test runs by hand, with its own clock.
//
// Any thread may call post() and schedule(). The test's thread calls run(), step(), turn() and advance().
// run_until() advances the clock by one millisecond at a time until a condition holds, or fails the test.
#pragma once

#include <weft/rpc/core/loop.h>

#include <asio/io_context.hpp>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace weft::test {

class HandLoop : public rpc::Loop {
 public:
  // here: running_here() returns true on every thread.
  explicit HandLoop(bool here = false) : here_(here) {}
  void post(rpc::Callback job) override {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  rpc::Clock::time_point now() const override {
    std::lock_guard lock(mutex_);
    return now_;
  }
  bool running_here() const override { return here_; }
  TimerId schedule(rpc::Clock::time_point when, rpc::Callback job) override {
    std::lock_guard lock(mutex_);
    timers_.emplace(std::pair(when, ++last_), std::move(job));
    return last_;
  }
  void cancel(TimerId timer) override {
    std::lock_guard lock(mutex_);
    std::erase_if(timers_, [&](const auto& one) { return one.first.second == timer; });
  }
  asio::execution_context& context() override { return context_; }
  std::size_t timers() const {
    std::lock_guard lock(mutex_);
    return timers_.size();
  }

  // Runs the posted jobs and the due timers, including jobs that these post. Returns their number; throws if
  // they do not end.
  std::size_t run(std::size_t most = 10'000'000) {
    std::size_t count = 0;
    for (; step(); ++count)
      if (count == most) throw std::runtime_error("the loop spins");
    return count;
  }
  bool turn() { return run() != 0; }
  // Runs one of them. Returns whether there was any.
  bool step() {
    rpc::Callback job = next();
    if (!job) return false;
    job();
    return true;
  }
  // Destroys the jobs that have not run. They may own this loop.
  void drop() {
    for (bool any = true; any;) {
      std::unique_lock lock(mutex_);
      const auto jobs = std::exchange(jobs_, {});
      const auto timers = std::exchange(timers_, {});
      lock.unlock();
      any = !jobs.empty() || !timers.empty();
    }
  }
  void advance(std::chrono::nanoseconds by) {
    std::lock_guard lock(mutex_);
    now_ += by;
  }

 private:
  rpc::Callback next() {
    std::lock_guard lock(mutex_);
    rpc::Callback job;
    if (!jobs_.empty()) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
    } else if (!timers_.empty() && timers_.begin()->first.first <= now_) {
      job = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    return job;
  }

  const bool here_;
  mutable std::mutex mutex_;  // guards the members below
  rpc::Clock::time_point now_ = rpc::Clock::now();
  std::deque<rpc::Callback> jobs_;
  std::map<std::pair<rpc::Clock::time_point, TimerId>, rpc::Callback> timers_;
  TimerId last_ = 0;
  asio::io_context context_;  // never run
};

// Runs several loops together.
inline bool run_until(const std::vector<HandLoop*>& loops, const std::function<bool()>& holds,
                      std::chrono::nanoseconds at_most = std::chrono::seconds{2}) {
  for (std::chrono::nanoseconds passed{0}; !holds(); passed += std::chrono::milliseconds{1}) {
    if (passed >= at_most) return false;
    bool any = false;
    for (HandLoop* loop : loops) any = loop->turn() || any;
    if (!any)
      for (HandLoop* loop : loops) loop->advance(std::chrono::milliseconds{1});
  }
  return true;
}

}  // namespace weft::test
