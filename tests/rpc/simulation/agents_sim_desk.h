// The service of the simulation's agents, and the program that each runs: calls of every kind to any agent.
#pragma once

#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <asio/use_awaitable.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/simulation/agents_sim_faults.h"
#include "tests/rpc/simulation/agents_sim_ledger.h"

namespace weft::test {

// Completes after a while of virtual time.
inline rpc::Future<void> pause(const std::shared_ptr<rpc::Loop>& loop, std::chrono::nanoseconds span) {
  auto promise = std::make_shared<rpc::Promise<void>>(loop);
  auto future = promise->future();
  loop->post([loop, promise, span] {
    loop->schedule(rpc::later(loop->now(), span), [promise] { promise->complete(rpc::Result<void>{}); });
  });
  return future;
}

// A stream of the items 0, 1, 2 … It holds a piece of memory that lives as long as its coroutine.
inline rpc::Stream<std::uint64_t> numbers([[maybe_unused]] rpc::Buffer held, std::shared_ptr<rpc::Loop> loop,
                                          std::uint64_t count, std::uint64_t microseconds) {
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % 4 == 3) co_await pause(loop, std::chrono::microseconds(microseconds));
    co_yield i;
  }
}
inline rpc::Stream<std::uint64_t> relay([[maybe_unused]] rpc::Buffer held, rpc::Stream<std::uint64_t> items) {
  while (const auto item = co_await items.next()) co_yield *item;
}

class Desk {
 public:
  Desk(Ledger& ledger, SimProcess& process, rpc::Agent& agent, Plant& plant)
      : ledger_(ledger), process_(process), core_(agent.core()), plant_(plant) {}

  std::uint64_t add(std::uint64_t call, std::uint64_t a, std::uint64_t b) {
    ledger_.runs(call);
    return a + b;
  }
  std::uint64_t quick(std::uint64_t call, std::uint64_t a, std::uint64_t b) { return add(call, a, b); }
  void fail(std::uint64_t call, bool own) {
    ledger_.runs(call);
    if (own) throw rpc::Error(rpc::ErrorKind::invalid_argument, "no");
    throw std::runtime_error("a fault");
  }
  rpc::Task<std::uint64_t> slow(std::uint64_t call, std::uint64_t microseconds) {
    ledger_.runs(call);
    co_await pause(loop(), std::chrono::microseconds(microseconds));
    co_return call;
  }
  rpc::Future<std::uint64_t> later(std::uint64_t call, std::uint64_t microseconds) {
    ledger_.runs(call);
    return pause(loop(), std::chrono::microseconds(microseconds)).then([call](rpc::Result<void>&&) {
      return call;
    });
  }
  asio::awaitable<std::uint64_t> by_asio(std::uint64_t call, std::uint64_t microseconds) {
    ledger_.runs(call);
    co_await pause(loop(), std::chrono::microseconds(microseconds)).async_get(asio::use_awaitable);
    co_return call;
  }
  // Runs until the call is cancelled.
  rpc::Task<void> stuck(rpc::CallContext& context, std::uint64_t call) {
    ledger_.runs(call);
    auto promise = std::make_shared<rpc::Promise<void>>();
    auto cancelled = promise->future();
    if (plant_.bears(Fault::call_is_kept)) {
      plant_.keep(promise);
      co_return co_await std::move(cancelled);
    }
    context.on_cancel([promise] { promise->complete(rpc::Result<void>{}); });
    co_await std::move(cancelled);
  }
  rpc::Future<void> forget(std::uint64_t call) {
    ledger_.runs(call);
    rpc::Promise<void> promise;
    return promise.future();
  }
  void note(std::uint64_t call, std::string) { ledger_.runs(call); }

  // Receives bytes and returns bytes.
  rpc::Buffer turn(std::uint64_t call, rpc::Buffer bytes, std::uint64_t size) {
    check(call, bytes, call);
    ledger_.runs(call);
    return ledger_.lend(process_, 0, static_cast<std::size_t>(size), call + 1);
  }
  rpc::Task<rpc::Buffer> hold(std::uint64_t call, rpc::Buffer bytes, std::uint64_t microseconds) {
    check(call, bytes, call);
    ledger_.runs(call);
    co_await pause(loop(), std::chrono::microseconds(microseconds));
    check(call, bytes, call);  // received bytes belong to the handler
    co_return bytes;
  }

  // Streams as results, as parameters, and as both.
  rpc::Stream<std::uint64_t> count(std::uint64_t call, std::uint64_t most, std::uint64_t microseconds) {
    ledger_.runs(call);
    return numbers(ledger_.lend(process_, 0, 1, 0, "a result's source"), loop(), most, microseconds);
  }
  rpc::Task<std::uint64_t> sum(std::uint64_t call, rpc::Stream<std::uint64_t> items) {
    ledger_.runs(call);
    std::uint64_t sum = 0;
    while (const auto item = co_await items.next()) sum += *item;
    co_return sum;
  }
  rpc::Stream<std::uint64_t> turn_stream(std::uint64_t call, rpc::Stream<std::uint64_t> items) {
    ledger_.runs(call);
    return relay(ledger_.lend(process_, 0, 1, 0, "a relay"), std::move(items));
  }

  // Passes a call along a path of peers.
  rpc::Task<std::uint64_t> pass(rpc::CallContext& context, std::uint64_t call, std::vector<std::string> way) {
    ledger_.runs(call);
    if (way.empty()) co_return 1;
    const auto core = core_.lock();
    if (core == nullptr) throw rpc::Error(rpc::ErrorKind::shut_down, "gone");
    const rpc::Peer next(core, core->routes().to_address("sim://" + way.front()));
    way.erase(way.begin());
    const std::uint64_t number = ledger_.begin(process_, "pass on");
    auto answer = next.with(context).call<&Desk::pass>(number, std::move(way));
    rpc::Result<std::uint64_t> result(nullptr);
    try {
      result = co_await std::move(answer);
    } catch (...) {
      result = std::current_exception();
    }
    ledger_.completed(number, result);
    co_return std::move(result).get() + 1;
  }

  using Service =
      rpc::Service<"desk", rpc::Method<"add", &Desk::add>,
                   rpc::Method<"quick", &Desk::quick, rpc::non_blocking>, rpc::Method<"fail", &Desk::fail>,
                   rpc::Method<"slow", &Desk::slow>, rpc::Method<"later", &Desk::later>,
                   rpc::Method<"by_asio", &Desk::by_asio>, rpc::Method<"stuck", &Desk::stuck>,
                   rpc::Method<"forget", &Desk::forget>, rpc::Method<"note", &Desk::note, rpc::non_blocking>,
                   rpc::Method<"turn", &Desk::turn>, rpc::Method<"hold", &Desk::hold>,
                   rpc::Method<"pass", &Desk::pass>, rpc::Method<"count", &Desk::count>,
                   rpc::Method<"sum", &Desk::sum>, rpc::Method<"turn_stream", &Desk::turn_stream>>;

 private:
  std::shared_ptr<rpc::Loop> loop() const {
    const auto core = core_.lock();
    if (core == nullptr) throw rpc::Error(rpc::ErrorKind::shut_down, "gone");
    return core->pick_loop();
  }
  void check(std::uint64_t call, const rpc::Buffer& bytes, std::uint64_t key) {
    if (!has_pattern(bytes, key)) ledger_.wrong(call, "its argument is not what was sent");
  }

  Ledger& ledger_;
  SimProcess& process_;
  const std::weak_ptr<rpc::AgentCore> core_;
  Plant& plant_;
};

// One incarnation of an agent, and the calls that it makes.
class Program {
 public:
  struct Ways {
    bool hurried = false;  // every call has a deadline
    bool patient = false;  // some deadlines are very long
    bool streams = false;  // calls with streams, whose readers detect every loss
    bool relays = false;   // relays of streams: each waits for another one, so credit is not scarce
    rpc::AgentOptions options;
  };

  Program(Ledger& ledger, SimProcess& process, const Ways& ways, Plant& plant)
      : ledger_(ledger),
        process_(process),
        ways_(ways),
        plant_(plant),
        agent_(start_planted_agent(process, options(ways), plant)),
        executor_(process.make_executor()) {
    agent_.serve(std::make_shared<Desk>(ledger, process, agent_, plant));
  }

  SimProcess& process() const { return process_; }
  rpc::Agent& agent() const { return agent_; }
  bool runs() const { return !ended_ && process_.alive(); }

  // Makes one call of any kind to one of these agents, on a thread of the executor or on the program's own.
  void act(const std::vector<std::string>& names) {
    if (random().coin()) return call(names);
    executor_->post([this, names] {
      if (!ended_) call(names);
    });
  }
  // Shuts the agent down, even if calls are in flight.
  void end() {
    ended_ = true;
    process_.destroy_kept();
  }

 private:
  SimRandom& random() { return process_.world().random(); }
  std::uint64_t microseconds() { return random().spread(1, 300'000); }

  rpc::AgentOptions options(const Ways& ways) {
    rpc::AgentOptions made = ways.options;
    made.loops = random().between(1, 2);
    return made;
  }

  static auto is(std::uint64_t expected) {
    return [expected](std::uint64_t value) { return value == expected; };
  }
  static bool nothing(const rpc::Unit&) { return false; }
  static bool anything(const rpc::Unit&) { return true; }

  rpc::Peer peer(const std::string& name) {
    return name == agent_.name() && random().coin() ? agent_.peer(name) : agent_.connect("sim://" + name);
  }

  void call(const std::vector<std::string>& names) {
    rpc::Peer to = peer(random().pick(names));
    const bool deadline = ways_.hurried || random().chance(250);
    rpc::CallOptions options;
    if (deadline)
      options.timeout =
          std::chrono::microseconds(random().chance(100) && ways_.patient ? std::uint64_t{3'600'000'000}
                                                                          : random().spread(1, 2'000'000));
    if (deadline) options.wait_for_ready = random().coin();
    const bool retried = random().chance(250);
    if (retried) {
      options.retry = rpc::RetryPolicy{.attempts = static_cast<std::uint16_t>(random().between(2, 5)),
                                       .first_wait = std::chrono::microseconds(random().spread(1, 100'000))};
      options.idempotent = random().coin();
    }
    to = to.with(options);
    const auto made = [&](const char* method) {
      const std::uint64_t number = ledger_.begin(process_, method);
      ledger_[number].deadline = deadline;
      ledger_[number].again = retried && options.idempotent.value_or(false);
      return number;
    };
    switch (random().below(ways_.relays ? 15 : ways_.streams ? 14 : 12)) {
      case 0: {
        const auto a = random().below(1000), b = random().below(1000);
        const auto number = made("add");
        return watch(to.call<&Desk::add>(number, a, b), number, is(a + b));
      }
      case 1: {
        const auto a = random().below(1000), b = random().below(1000);
        const auto number = made("quick");
        return watch(to.call<&Desk::quick>(number, a, b), number, is(a + b));
      }
      case 2: {
        const auto number = made("fail");
        return watch(to.call<&Desk::fail>(number, random().coin()), number, nothing);
      }
      case 3: {
        const auto number = made("slow");
        return watch(to.call<&Desk::slow>(number, microseconds()), number, is(number));
      }
      case 4: {
        const auto number = made("later");
        return watch(to.call<&Desk::later>(number, microseconds()), number, is(number));
      }
      case 5: {
        const auto number = made("by_asio");
        return watch(to.call<&Desk::by_asio>(number, microseconds()), number, is(number));
      }
      case 6: {
        const auto number = made("stuck");
        if (!deadline) {
          options.timeout = std::chrono::microseconds(microseconds());
          to = to.with(options);
        }
        return watch(to.call<&Desk::stuck>(number), number, [](const rpc::Unit&) { return true; });
      }
      case 7: {
        const auto number = made("forget");
        return watch(to.call<&Desk::forget>(number), number, nothing);
      }
      case 8: {
        const auto number = made("note");
        if (random().coin())
          return watch(to.call<&Desk::note>(number, std::string(100, 'x')), number, anything);
        CallRecord& record = ledger_[number];
        record.notify = record.dropped = true;
        to.notify<&Desk::note>(number, std::string(100, 'x'));
        return;
      }
      case 9: {
        const auto number = made("turn");
        const auto size = static_cast<std::size_t>(random().spread(1, 60'000));
        return watch(
            to.call<&Desk::turn>(number, bytes(number), size), number,
            [number, size](const rpc::Buffer& b) { return b.size() == size && has_pattern(b, number + 1); });
      }
      case 10: {
        const auto number = made("hold");
        return watch(to.call<&Desk::hold>(number, bytes(number), microseconds()), number,
                     [number](const rpc::Buffer& b) { return has_pattern(b, number); });
      }
      case 11: {
        const auto number = made("pass");
        std::vector<std::string> way;
        for (auto hops = random().below(4); hops != 0; --hops) way.push_back(random().pick(names));
        const auto length = way.size() + 1;
        return watch(to.call<&Desk::pass>(number, std::move(way)), number, is(length));
      }
      case 12: {
        const auto number = made("count"), most = random().below(100);
        return follow(to.call<&Desk::count>(number, most, microseconds() / 20), number, most);
      }
      case 13: {
        const auto number = made("sum"), most = random().below(100);
        return watch(to.call<&Desk::sum>(number, own_numbers(most)), number, is(most * (most - 1) / 2));
      }
      default: {
        const auto number = made("turn_stream"), most = random().below(100);
        return follow(to.call<&Desk::turn_stream>(number, own_numbers(most)), number, most);
      }
    }
  }

  rpc::Stream<std::uint64_t> own_numbers(std::uint64_t most) {
    return numbers(ledger_.lend(process_, 0, 1, 0, "an argument's source"), agent_.core()->pick_loop(), most,
                   microseconds() / 20);
  }

  // Reads the stream that a call returns to its end, or stops earlier.
  void follow(rpc::Future<rpc::Stream<std::uint64_t>> future, std::uint64_t number, std::uint64_t most) {
    const std::uint64_t enough = random().chance(300) ? random().below(100) : ~std::uint64_t{0};
    auto window =
        random().coin() ? std::optional(rpc::StreamWindow{.items = random().between(1, 8)}) : std::nullopt;
    read(std::move(future), number, most, enough, window, ledger_.lend(process_, 0, 1, 0, "a reader"))
        .start(*executor_)
        .then([](rpc::Result<void>&&) {});
  }
  rpc::Task<> read(rpc::Future<rpc::Stream<std::uint64_t>> future, std::uint64_t number, std::uint64_t most,
                   std::uint64_t enough, std::optional<rpc::StreamWindow> window,
                   [[maybe_unused]] rpc::Buffer held) {
    rpc::Result<rpc::Stream<std::uint64_t>> made(nullptr);
    try {
      made = co_await std::move(future);
    } catch (...) {
      made = std::current_exception();
    }
    ledger_.completed(number, made);
    if (!made.ok()) co_return;
    auto stream = std::move(made).get();
    if (window) stream = std::move(stream).window(*window);
    try {
      std::uint64_t next = 0;
      while (next < enough) {
        const auto item = co_await stream.next();
        if (!item) {
          if (next != most) ledger_.wrong(number, "its stream ended early, without an error");
          break;
        }
        if (*item != next++) ledger_.wrong(number, "its stream's items are not in order");
      }
    } catch (const rpc::Error& error) {
      if (error.kind() == rpc::ErrorKind::resource_exhausted || error.kind() == rpc::ErrorKind::internal)
        ledger_.wrong(number, std::string("its stream failed: ") + error.what());
    }
  }

  static std::exception_ptr not_sent() {
    return std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "planted", rpc::Execution::not_sent));
  }

  rpc::Buffer bytes(std::uint64_t number) {
    // Above 64 KiB they arrive in memory of the agent's pool.
    const std::uint64_t most = random().chance(100) ? 150'000 : 60'000;
    return ledger_.lend(process_, number, static_cast<std::size_t>(random().spread(0, most)), number);
  }

  template <class T, class Right>
  void watch(rpc::Future<T> future, std::uint64_t number, Right right) {
    if (random().chance(50)) {
      ledger_[number].dropped = true;
      return;
    }
    auto ended = std::make_shared<rpc::Future<rpc::Unit>>(
        std::move(future).then([&ledger = ledger_, &plant = plant_, number, right](rpc::Result<T>&& result) {
          if (!result.ok() && plant.bears(Fault::says_not_sent)) result = not_sent();
          ledger.completed(number, result);
          if (result.ok() && !right(result.value()))
            ledger.wrong(number, "its value is not what was to come");
          return rpc::Unit{};
        }));
    if (!random().chance(150)) return;
    process_.world().after(random().up_to(std::chrono::milliseconds(50)), [this, number, ended] {
      if (!process_.alive()) return;
      ended->cancel();
      // The fault: the call completes when cancel() is called.
      if (plant_.bears(Fault::completes_twice)) ledger_.completed(number, rpc::Result<rpc::Unit>(not_sent()));
    });
  }

  Ledger& ledger_;
  SimProcess& process_;
  const Ways ways_;
  Plant& plant_;
  rpc::Agent& agent_;  // until end()
  const std::shared_ptr<SimExecutor> executor_;
  bool ended_ = false;
};

}  // namespace weft::test
