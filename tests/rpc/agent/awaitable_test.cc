// Handlers that are Asio's coroutines.
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>

#include "tests/support/cluster.h"

namespace weft::rpc::awaitable_test {
namespace {

using namespace test;

std::atomic<int> ended{0};

struct Ends {
  ~Ends() { ++ended; }
};

asio::awaitable<int> twice(int x) {
  co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  co_return 2 * x;
}
asio::awaitable<void> nothing(CallContext& call) {
  EXPECT_EQ(call.peer().id.name, "client");
  EXPECT_EQ(call.method(), "nothing");
  co_return;
}
asio::awaitable<int> fails() {
  co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  throw Error(ErrorKind::not_found, "nothing of that name");
}
// Waits for an Asio timer that expires in a day.
asio::awaitable<int> waits(Event& began) {
  Ends ends;
  asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::hours{24});
  began.set();
  co_await timer.async_wait(asio::use_awaitable);
  co_return 1;
}

struct Clerk {
  test::Event began;
  asio::awaitable<int> wait() { return waits(began); }
  asio::awaitable<bool> on_a_loop() { co_return agent->core()->pick_loop()->running_here(); }
  Agent* agent = nullptr;
  using Service = rpc::Service<"clerk", Method<"wait", &Clerk::wait>, Method<"on_a_loop", &Clerk::on_a_loop>>;
};

class AwaitableTest : public testing::Test {
 protected:
  AwaitableTest() : cluster_({}, {"client", "server"}), peer_(cluster_.peer("client", "server")) {
    ended = 0;
    auto& server = cluster_["server"];
    clerk_->agent = &server;
    server.serve<Function<"twice", &twice>>();
    server.serve<Function<"nothing", &nothing>>();
    server.serve<Function<"fails", &fails>>();
    server.serve(clerk_);
  }

  std::shared_ptr<Clerk> clerk_ = std::make_shared<Clerk>();
  test::Cluster cluster_;
  Peer peer_;
};

TEST_F(AwaitableTest, HandlersMayBeAsioCoroutines) {
  EXPECT_EQ(got(peer_.call<Function<"twice", &twice>>(21)), 42);
  EXPECT_NO_THROW(got(peer_.call<Function<"nothing", &nothing>>()));
  EXPECT_EQ(kind_of([&] { got(peer_.call<Function<"fails", &fails>>()); }), ErrorKind::not_found);
  EXPECT_FALSE(got(peer_.call<&Clerk::on_a_loop>()));
}

TEST_F(AwaitableTest, CancellationOfTheCallCancelsTheWaitOfTheHandler) {
  auto result = peer_.call<&Clerk::wait>();
  clerk_->began.wait();
  result.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(result)); }), ErrorKind::cancelled);
  test::eventually("the coroutine has ended", [] { return ended == 1; });
  EXPECT_NO_THROW(got(cluster_["server"].drain(test::too_long)));
}

TEST_F(AwaitableTest, TheEndOfTheAgentCancelsTheWaitOfTheHandler) {
  auto result = peer_.call<&Clerk::wait>();
  clerk_->began.wait();
  cluster_.end("server");
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(kind_of([&] { got(std::move(result)); }), ErrorKind::peer_lost);
}

}  // namespace
}  // namespace weft::rpc::awaitable_test
