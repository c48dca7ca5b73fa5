// A few agents in this process that can reach each other, on an in-process network of their own or over TCP;
// and how tests wait for what other threads bring about.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/transport/in_process.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "tests/support/wait.h"

namespace weft::test {

// Waits for a future, though not for ever.
template <class T>
T got(rpc::Future<T> future) {
  auto handover = std::make_shared<Handover<rpc::Result<T>>>();
  std::move(future).then([handover](rpc::Result<T>&& result) { handover->give(std::move(result)); });
  return handover->take().get();
}

// Asks until the condition holds; one that never does fails the test, and says which it was.
template <class Condition>
void eventually(const std::string& what, Condition condition) {
  const auto end = rpc::Clock::now() + too_long / 2;
  while (!condition()) {
    if (rpc::Clock::now() >= end) {
      ADD_FAILURE() << "half a minute has passed, and still not: " << what;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

class Cluster {
 public:
  struct Options {
    rpc::Layers layers;
    bool tcp = false;  // over loopback
    std::function<void(rpc::AgentOptions&)> adjust;
  };

  explicit Cluster(Options options) : options_(std::move(options)) {}
  Cluster(Options options, const std::vector<std::string>& names) : Cluster(std::move(options)) {
    for (const auto& name : names) add(name);
  }

  rpc::Agent& add(const std::string& name) { return add(name, options_.layers); }
  rpc::Agent& add(const std::string& name, rpc::Layers layers) {
    rpc::AgentOptions options;
    options.name = name;
    options.listen = {options_.tcp ? "tcp://127.0.0.1:0" : "inproc://" + name};
    options.in_process = network_;
    options.handler_threads = 2;
    options.log = [this](const rpc::LogRecord& record) {
      std::lock_guard lock(mutex_);
      log_.push_back({record.level, std::string(record.agent), std::string(record.message)});
    };
    if (options_.adjust) options_.adjust(options);
    auto agent = std::make_unique<rpc::Agent>(std::move(options), std::move(layers));
    return *(agents_[name] = std::move(agent));
  }
  rpc::Agent& operator[](const std::string& name) { return *agents_.at(name); }

  // `to`, as `from` sees it: connected, its life known.
  rpc::Peer peer(const std::string& from, const std::string& to) {
    rpc::Agent& agent = (*this)[from];
    if (from == to) return agent.peer(to);
    rpc::Peer peer = agent.connect((*this)[to].addresses().front());
    got(peer.ready());
    return peer;
  }
  // Everybody connected to everybody.
  void acquaint() {
    for (const auto& [from, agent] : agents_)
      for (const auto& [to, other] : agents_) peer(from, to);
  }
  void end(const std::string& name) { agents_.erase(name); }
  void end_all() { agents_.clear(); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, agent] : agents_) all.push_back(name);
    return all;
  }

  struct LogLine {
    rpc::LogLevel level;
    std::string agent, message;
  };
  std::vector<LogLine> log() const {
    std::lock_guard lock(mutex_);
    return log_;
  }
  // What was said with these words in it.
  std::vector<LogLine> logged(const std::string& words) const {
    auto lines = log();
    std::erase_if(lines, [&](const LogLine& line) { return line.message.find(words) == std::string::npos; });
    return lines;
  }

 private:
  Options options_;
  std::shared_ptr<rpc::InProcess> network_ = std::make_shared<rpc::InProcess>();
  mutable std::mutex mutex_;  // guards log_
  std::vector<LogLine> log_;
  std::map<std::string, std::unique_ptr<rpc::Agent>> agents_;
};

// Keeps the loop of an agent that has one from doing anything, for as long as this lives.
class HeldLoop {
 public:
  explicit HeldLoop(rpc::Agent& agent) {
    agent.core()->pick_loop()->post([state = state_] {
      state->held.set();
      state->released.wait();
    });
    state_->held.wait();
  }
  ~HeldLoop() { release(); }
  void release() { state_->released.set(); }
  HeldLoop(const HeldLoop&) = delete;
  HeldLoop& operator=(const HeldLoop&) = delete;

 private:
  struct State {
    Event held, released;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace weft::test
