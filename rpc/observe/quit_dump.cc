#include <weft/rpc/observe/quit_dump.h>

#include <weft/rpc/agent/calls_in_flight.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>

#include <csignal>
#include <cstdio>
#include <thread>

namespace weft::observe {
namespace {

constexpr auto loops_timeout = std::chrono::seconds{1};

void to_stderr(const std::string& lines) { std::fputs(lines.c_str(), stderr); }

}  // namespace

struct QuitDump::State {
  State(const std::shared_ptr<rpc::AgentCore>& agent, Print to)
      : core(agent), print(to ? std::move(to) : Print(to_stderr)), signals(context, SIGQUIT) {}

  void wait() {
    signals.async_wait([this](const asio::error_code& error, int) {
      if (error) return;
      if (const auto agent = core.lock(); agent != nullptr && !agent->ended())
        print(rpc::text_of(rpc::calls_in_flight(agent, loops_timeout)));
      wait();
    });
  }

  const std::weak_ptr<rpc::AgentCore> core;
  const Print print;
  asio::io_context context;
  asio::signal_set signals;
  std::thread thread;
};

QuitDump::QuitDump(rpc::Agent& agent, Print print)
    : state_(std::make_unique<State>(agent.core(), std::move(print))) {
  state_->wait();
  state_->thread = std::thread([state = state_.get()] { state->context.run(); });
}

QuitDump::~QuitDump() {
  state_->context.stop();
  state_->thread.join();
}

}  // namespace weft::observe
