// A loop on a thread of its own that polls its pollers, and sleeps when nothing has come for a while.
#pragma once

#include <weft/rpc/core/loop.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace weft::test {

class SpinningLoop final : public rpc::Loop {
 public:
  // Polls so many times in vain before it sleeps.
  explicit SpinningLoop(int patience = 1000)
      : state_(std::make_shared<State>()), thread_([state = state_, patience] { state->run(patience); }) {}
  ~SpinningLoop() override {
    asio::post(state_->io, [state = state_] {
      state->timers.clear();
      state->work.reset();
    });
    if (running_here()) {
      thread_.detach();  // what let go of it last was a job of its own
    } else {
      thread_.join();
    }
  }

  void post(rpc::Job job) override { asio::post(state_->io, std::move(job)); }
  rpc::Clock::time_point now() const override { return rpc::Clock::now(); }
  bool running_here() const override { return std::this_thread::get_id() == thread_.get_id(); }
  TimerId schedule(rpc::Clock::time_point when, rpc::Job job) override {
    const TimerId id = ++state_->last;
    auto& timer = state_->timers.try_emplace(id, state_->io, when).first->second;
    timer.async_wait([state = state_.get(), id, job = std::move(job)](const asio::error_code& error) mutable {
      if (error) return;
      state->timers.erase(id);
      job();
    });
    return id;
  }
  void cancel(TimerId id) override { state_->timers.erase(id); }
  asio::io_context& context() override { return state_->io; }

  bool spins() const override { return true; }
  void add_poller(rpc::LoopPoller& poller) override { state_->pollers.push_back(&poller); }
  void remove_poller(rpc::LoopPoller& poller) override { std::erase(state_->pollers, &poller); }

 private:
  struct State {
    void run(int patience) {
      while (!io.stopped()) {
        for (int idle = 0; idle < patience && !io.stopped(); ++idle) {
          bool worked = io.poll() != 0;
          for (std::size_t i = 0; i < pollers.size(); ++i) worked |= pollers[i]->poll();
          if (worked) idle = -1;
        }
        const auto all = pollers;
        std::size_t asleep = 0;
        while (asleep < all.size() && all[asleep]->fall_asleep()) ++asleep;
        if (asleep == all.size() && !io.stopped()) io.run_one();
        for (rpc::LoopPoller* poller : all)
          if (std::find(pollers.begin(), pollers.end(), poller) != pollers.end()) poller->wake_up();
      }
    }

    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
    std::vector<rpc::LoopPoller*> pollers;
    std::map<TimerId, asio::steady_timer> timers;
    TimerId last = 0;
  };

  const std::shared_ptr<State> state_;  // the thread's too, which may outlive the loop by a moment
  std::thread thread_;
};

}  // namespace weft::test
