// SimLoop: a Loop in virtual time. SimExecutor: an Executor that simulates a pool of handler threads.
//
// A loop runs its jobs in the order of posting. Timers run between them; timers that are due at the same time
// run in any order. An executor has no order: it runs any of its jobs, one at a time, like a pool whose
// threads may be delayed. A SimProcess makes and owns both. context() never runs, because Asio's timers and
// sockets would introduce real time. Thread-safety: none; one thread runs the whole world.
#pragma once

#include <weft/rpc/testing/simulation/sim_runner.h>

#include <asio/io_context.hpp>

#include <deque>
#include <map>
#include <tuple>

namespace weft::test {

class WEFT_EXPORT SimLoop final : public rpc::Loop, public SimRunner {
 public:
  void post(rpc::Callback job) override;
  rpc::Clock::time_point now() const override { return time(); }
  bool running_here() const override { return current(); }
  TimerId schedule(rpc::Clock::time_point when, rpc::Callback job) override;
  void cancel(TimerId timer) override;
  asio::execution_context& context() override { return context_; }
  std::size_t timers() const { return timers_.size(); }  // pending timers

 private:
  friend class SimProcess;
  SimLoop(SimProcess& process, std::string name) : SimRunner(process, std::move(name)) {}

  using TimerKey = std::tuple<rpc::Clock::time_point, std::uint64_t, TimerId>;  // a random number breaks ties

  rpc::Clock::time_point due() const override;
  rpc::Callback take() override;
  std::vector<rpc::Callback> take_all() override;

  std::deque<Posted> jobs_;
  std::map<TimerKey, rpc::Callback> timers_;
  std::map<TimerId, TimerKey> timer_keys_;
  TimerId last_timer_ = 0;
  asio::io_context context_;  // never run
};

class WEFT_EXPORT SimExecutor final : public rpc::Executor, public SimRunner {
 public:
  void post(rpc::Callback job) override;
  std::shared_ptr<rpc::ExceptionSink> exceptions() const override { return exceptions_; }

 private:
  friend class SimProcess;
  SimExecutor(SimProcess& process, std::string name) : SimRunner(process, std::move(name)) {}

  rpc::Clock::time_point due() const override;
  rpc::Callback take() override;
  std::vector<rpc::Callback> take_all() override;

  std::vector<Posted> jobs_;
  const std::shared_ptr<rpc::ExceptionSink> exceptions_ = std::make_shared<rpc::ExceptionSink>();
};

}  // namespace weft::test
