// Continuations of calls that throw, and calls that an Asio coroutine gives up.
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/core/serial_executor.h>
#include <weft/rpc/core/when_all.h>

#include <asio/bind_executor.hpp>
#include <asio/co_spawn.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>

#include "tests/support/cluster.h"

namespace weft::rpc::continuation_test {
namespace {

using namespace test;

struct Desk {
  int echo(int x) { return x; }
  Future<int> wait(CallContext& call) {
    call.on_cancel([this] { cancelled.set(); });
    auto future = waiting.future();
    began.set();
    return future;
  }
  Promise<int> waiting;
  test::Event began, cancelled;
  using Service = rpc::Service<"desk", Method<"echo", &Desk::echo>, Method<"wait", &Desk::wait>>;
};

void careless(Result<int>&& result) {
  if (result.ok()) throw std::runtime_error("careless");
  (void)std::move(result).get();
}

class ContinuationTest : public testing::Test {
 protected:
  ContinuationTest() : cluster_({}, {"server", "client"}), peer_(cluster_.peer("client", "server")) {
    cluster_["server"].serve(desk_);
  }
  void expect_dropped(std::uint64_t count) {
    // Each is counted before it is logged.
    test::eventually("the exceptions are logged",
                     [&] { return cluster_.logged("a continuation threw an exception").size() == count; });
    EXPECT_EQ(cluster_["client"].counts().exceptions_dropped, count);
    EXPECT_EQ(stats(cluster_["client"]).exceptions_dropped, count);
  }

  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  test::Cluster cluster_;
  Peer peer_;
};

TEST_F(ContinuationTest, ThatThrowsOnAReplyDoesNotCloseTheConnection) {
  auto other = peer_.call<&Desk::wait>();
  desk_->began.wait();
  peer_.call<&Desk::echo>(1).then(careless);
  expect_dropped(1);
  EXPECT_EQ(cluster_.logged("careless").at(0).level, LogLevel::error);
  desk_->waiting.complete(2);
  EXPECT_EQ(got(std::move(other)), 2);
  EXPECT_EQ(cluster_["client"].counts().connections_made, 1U);
}

TEST_F(ContinuationTest, ThatThrowsOnATimeoutDoesNotEndTheLoop) {
  peer_.with({.timeout = std::chrono::milliseconds{1}}).call<&Desk::wait>().then(careless);
  expect_dropped(1);
  EXPECT_EQ(got(peer_.call<&Desk::echo>(3)), 3);
}

TEST_F(ContinuationTest, ThatThrowsOnARefusalDoesNotEndTheLoop) {
  cluster_["client"].connect("inproc://nobody").call<&Desk::echo>(1).then(careless);
  expect_dropped(1);
  CancelScope scope;
  scope.cancel();
  peer_.with(scope).call<&Desk::echo>(1).then(careless);  // refused on this thread
  expect_dropped(2);
  EXPECT_EQ(got(peer_.call<&Desk::echo>(4)), 4);
}

// The futures of these tasks have no loop.
TEST_F(ContinuationTest, ThatThrowsAfterATaskOnTheHandlersIsCounted) {
  Executor& handlers = cluster_["client"].core()->handlers();
  const auto task = []() -> Task<int> { co_return 1; };
  task().start(handlers).then(careless);
  expect_dropped(1);
  task().start(handlers).then([](Result<int>&& result) { return result; }).then(careless);
  expect_dropped(2);
  SerialExecutor turns(handlers);
  task().start(turns).then(careless);
  expect_dropped(3);
  std::vector<Future<int>> both;
  for (int i = 0; i < 2; ++i) both.push_back(task().start(handlers));
  when_all(std::move(both)).then([](auto&&) { throw std::runtime_error("careless"); });
  expect_dropped(4);
}

TEST_F(ContinuationTest, AHandlersJobThatThrowsIsCounted) {
  cluster_["client"].core()->handlers().post([] { throw std::runtime_error("careless"); });
  test::eventually("it is counted", [&] { return cluster_["client"].counts().exceptions_dropped == 1; });
  EXPECT_EQ(cluster_.logged("a task of the handler threads threw an exception").size(), 1U);
  EXPECT_EQ(got(peer_.call<&Desk::echo>(5)), 5);
}

TEST_F(ContinuationTest, OtherCancelCallbacksRunIfOneThrows) {
  CancelScope scope;
  bool ran = false;
  scope.source()->on_cancel([] { throw std::runtime_error("careless"); });
  scope.source()->on_cancel([&] { ran = true; });
  EXPECT_NO_THROW(scope.cancel());
  EXPECT_TRUE(ran);
}

// --- On the program's io_context ---

class OnIoContextTest : public testing::Test {
 protected:
  OnIoContextTest() {
    server_.serve(desk_);
    client_.emplace(io_, AgentOptions{.name = "client", .log = [this](const LogRecord& record) {
                                        if (record.level == LogLevel::error) ++errors_;
                                      }});
  }
  Peer peer() { return client_->connect(server_.addresses().front()); }
  // Runs the io_context as Asio permits, again after each exception, until the condition holds. Returns the
  // number of exceptions.
  template <class Condition>
  int run_until(Condition condition) {
    int thrown = 0;
    const auto end = Clock::now() + std::chrono::seconds{10};
    while (!condition() && Clock::now() < end) {
      try {
        io_.restart();
        io_.run_one_for(std::chrono::milliseconds{100});
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
    EXPECT_TRUE(condition());
    return thrown;
  }

  std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
  Agent server_{{.name = "server", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
  int errors_ = 0;
  asio::io_context io_;
  std::optional<Agent> client_;
};

TEST_F(OnIoContextTest, LaterCallsCompleteAfterAContinuationThrew) {
  for (int i = 0; i < 3; ++i) peer().call<&Desk::echo>(i).then(careless);
  auto last = peer().call<&Desk::echo>(7);
  EXPECT_EQ(run_until([&] { return last.ready(); }), 0);
  EXPECT_EQ(last.get(), 7);
  EXPECT_EQ(errors_, 3);
  peer().with({.timeout = std::chrono::milliseconds{1}}).call<&Desk::wait>().then(careless);
  EXPECT_EQ(run_until([&] { return errors_ == 4; }), 0);
  auto after = peer().call<&Desk::echo>(8);
  EXPECT_EQ(run_until([&] { return after.ready(); }), 0);
}

// An Asio handler is the program's own: its exception leaves run(), as Asio promises.
TEST_F(OnIoContextTest, AnExceptionOfACompletionHandlerLeavesRunAndLaterCallsComplete) {
  peer().call<&Desk::echo>(1).async_get(
      asio::bind_executor(io_, [](std::exception_ptr, int) { throw std::runtime_error("own"); }));
  auto last = peer().call<&Desk::echo>(9);
  EXPECT_EQ(run_until([&] { return last.ready(); }), 1);
  EXPECT_EQ(last.get(), 9);
  EXPECT_EQ(errors_, 0);
}

TEST_F(OnIoContextTest, ATimerThatFiresFirstCancelsTheCall) {
  using namespace asio::experimental::awaitable_operators;
  std::optional<std::size_t> winner;
  const auto race = [](Peer peer, test::Event& began) -> asio::awaitable<std::size_t> {
    auto call = peer.call<&Desk::wait>();
    asio::steady_timer timer(co_await asio::this_coro::executor);
    while (!began.is_set()) {
      timer.expires_after(std::chrono::milliseconds{1});
      co_await timer.async_wait(asio::use_awaitable);
    }
    auto first = co_await (call.async_get(asio::use_awaitable) || timer.async_wait(asio::use_awaitable));
    co_return first.index();
  };
  asio::co_spawn(io_, race(peer(), desk_->began),
                 [&](std::exception_ptr, std::size_t index) { winner = index; });
  run_until([&] { return winner.has_value(); });
  EXPECT_EQ(winner, 1U);
  test::eventually("the callee hears of it", [&] {
    io_.restart();
    io_.poll();
    return desk_->cancelled.is_set();
  });
}

}  // namespace
}  // namespace weft::rpc::continuation_test
