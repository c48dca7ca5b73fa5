// Deadlines: at the caller, on the wire, at the handler, and in nested calls.
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include "tests/support/cluster.h"

namespace weft::rpc::deadline_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

using Left = std::optional<std::int64_t>;  // nanoseconds until the deadline

class Clockwork {
 public:
  explicit Clockwork(Agent& own) : own_(own) {}

  Left left(CallContext& call) const {
    if (!call.deadline()) return std::nullopt;
    return std::chrono::nanoseconds(*call.deadline() - Clock::now()).count();
  }
  // Returns the remaining time that a handler on `peer` sees in a nested call. `asked`: the timeout of the
  // nested call itself.
  Task<Left> nested(CallContext& call, std::string peer, Left asked, bool handed_on) {
    Peer to = own_.peer(peer);
    if (asked) to = to.with(CallOptions{.timeout = std::chrono::nanoseconds(*asked)});
    if (handed_on) to = to.with(call);
    co_return co_await to.call<&Clockwork::left>();
  }
  void until_late(CallContext& call) {
    began.set();
    while (!call.cancelled()) std::this_thread::sleep_for(1ms);
    late.set();
  }
  Future<void> hang() {
    std::lock_guard lock(mutex_);
    hanging_.emplace_back();
    return hanging_.back().future();
  }
  void block() {
    began.set();
    released.wait();
  }
  void count() { ++counted; }
  void answer_all() {
    std::lock_guard lock(mutex_);
    for (auto& promise : hanging_) promise.complete(Result<void>{});
    hanging_.clear();
  }

  using Service =
      rpc::Service<"clockwork", Method<"left", &Clockwork::left>, Method<"nested", &Clockwork::nested>,
                   Method<"until_late", &Clockwork::until_late>, Method<"hang", &Clockwork::hang>,
                   Method<"block", &Clockwork::block>, Method<"count", &Clockwork::count>>;

  Event began, late, released;
  std::atomic<int> counted{0};

 private:
  Agent& own_;
  std::mutex mutex_;  // guards hanging_
  std::vector<Promise<void>> hanging_;
};

void ping() {}
using Ping = Function<"weft.ping", &ping>;  // every agent serves it, on its loop

CallOptions within(std::chrono::nanoseconds time) { return {.timeout = time}; }

class DeadlineTest : public testing::Test {
 protected:
  // Agents with one handler thread, which serves calls of values one at a time.
  DeadlineTest() : cluster({.adjust = [](AgentOptions& options) { options.handler_threads = 1; }}) {
    for (const char* name : {"a", "b", "c"}) {
      Agent& agent = cluster.add(name);
      clockworks[name] = std::make_shared<Clockwork>(agent);
      agent.serve(clockworks[name]);
    }
    cluster.acquaint();
    to_b.emplace(cluster.peer("a", "b"));
  }
  ~DeadlineTest() override { at_b().released.set(); }
  Clockwork& at_b() { return *clockworks["b"]; }

  Cluster cluster;
  std::map<std::string, std::shared_ptr<Clockwork>> clockworks;
  std::optional<Peer> to_b;
};

TEST_F(DeadlineTest, FailsACallWithoutAReply) {
  expect_error([&] { got(to_b->with(within(500ms)).call<&Clockwork::hang>()); }, ErrorKind::deadline_exceeded,
               Execution::maybe_executed, whole("b: clockwork.hang: the deadline has passed (may have run)"));
  at_b().answer_all();
  EXPECT_EQ(got(to_b->call<&Clockwork::left>()), std::nullopt) << "the late answer harms nobody";
}

TEST_F(DeadlineTest, AWaitThatTimesOutNamesTheCallAndDoesNotCancelIt) {
  for (const CallOptions& options : {CallOptions{}, CallOptions{.retry = RetryPolicy{}}}) {
    auto call = to_b->with(options).call<&Clockwork::hang>();
    expect_error(
        [&] { call.get(2ms); }, ErrorKind::deadline_exceeded,
        whole("b: clockwork.hang: get(): no result within the timeout of 2 ms; the operation continues: wait "
              "again, "
              "or cancel() it"));
    test::eventually("it is answered", [&] { return at_b().answer_all(), call.ready(); });
    EXPECT_NO_THROW(call.get(0ns));
  }
}

TEST_F(DeadlineTest, BelongsToTheHandleWithTheTimeout) {
  const Peer hurried = to_b->with(within(1h));
  EXPECT_NE(got(hurried.call<&Clockwork::left>()), std::nullopt);
  EXPECT_EQ(got(to_b->call<&Clockwork::left>()), std::nullopt);
  EXPECT_NE(got(hurried.with(CallOptions{}).call<&Clockwork::left>()), std::nullopt);
  EXPECT_EQ(got(hurried.with(within(no_timeout)).call<&Clockwork::left>()), std::nullopt);
}

TEST_F(DeadlineTest, OfTheMaximumDurationNeverExpires) {
  EXPECT_FALSE(got(to_b->with(within(std::chrono::nanoseconds::max())).call<&Clockwork::left>())) << "none";
  const auto left = got(to_b->with(within(std::chrono::nanoseconds::max() - 1ns)).call<&Clockwork::left>());
  EXPECT_GT(left.value(), std::chrono::nanoseconds(24h * 365).count());
}

TEST_F(DeadlineTest, OfZeroPreventsTheCallFromRunning) {
  for (const auto time : {0ns, -1ns})
    EXPECT_EQ(kind_of([&] { got(to_b->with(within(time)).call<&Clockwork::count>()); }),
              ErrorKind::deadline_exceeded);
  got(to_b->call<&Clockwork::left>());  // runs after the calls above
  EXPECT_EQ(at_b().counted, 0);
}

TEST_F(DeadlineTest, IsInheritedByNestedCalls) {
  const std::int64_t hour = std::chrono::nanoseconds(1h).count();
  const auto nested = [&](const Peer& peer, Left asked, bool handed_on) {
    return got(peer.call<&Clockwork::nested>("c", asked, handed_on));
  };
  const Peer hurried = to_b->with(within(1h));
  const Left taken = nested(hurried, std::nullopt, true);
  ASSERT_TRUE(taken);
  EXPECT_LE(*taken, hour);
  EXPECT_EQ(nested(hurried, std::nullopt, false), std::nullopt) << "only if the context is passed on";
  EXPECT_EQ(nested(*to_b, std::nullopt, true), std::nullopt);

  EXPECT_LE(nested(hurried, 2 * hour, true).value_or(3 * hour), hour) << "no longer than the outer one";
  EXPECT_LE(nested(hurried, hour / 2, true).value_or(hour), hour / 2) << "though shorter";
  EXPECT_LE(nested(*to_b, hour / 2, true).value_or(hour), hour / 2);
}

TEST_F(DeadlineTest, AHandlerSeesItsDeadlineWithoutACancellation) {
  auto call = to_b->with(within(1s)).call<&Clockwork::until_late>();
  at_b().began.wait();
  {
    const HeldLoop silent(cluster["a"]);  // the caller cannot send a cancellation
    at_b().late.wait();
  }
  // The held loop finds the reply and the expired deadline at the same time.
  const auto kind = kind_of([&] { got(std::move(call)); });
  EXPECT_TRUE(!kind || *kind == ErrorKind::deadline_exceeded);
}

TEST_F(DeadlineTest, PreventsAQueuedCallFromRunning) {
  auto first = to_b->call<&Clockwork::block>();
  at_b().began.wait();
  EXPECT_EQ(kind_of([&] { got(to_b->with(within(20ms)).call<&Clockwork::count>()); }),
            ErrorKind::deadline_exceeded);
  got(to_b->call<Ping>());  // on the loop: the cancellation has arrived when this is answered
  at_b().released.set();
  got(std::move(first));
  got(to_b->call<&Clockwork::left>());  // runs after the calls that were queued before
  EXPECT_EQ(at_b().counted, 0);
}

// --- While there is no connection ---

// Accepts connections and sends nothing.
class Mute {
 public:
  Mute() : acceptor_(context_, {asio::ip::address_v4::loopback(), 0}) {}
  std::string address() const {
    return "tcp://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::acceptor acceptor_;
};

TEST_F(DeadlineTest, FailsACallThatCouldNotBeSent) {
  const Mute mute;
  const Peer peer = cluster["a"].connect(mute.address()).with(within(20ms));
  expect_error([&] { got(peer.call<&Clockwork::count>()); }, ErrorKind::deadline_exceeded,
               Execution::not_sent);
  EXPECT_EQ(kind_of([&] { got(peer.ready()); }), ErrorKind::deadline_exceeded) << "ready() is a call";
}

TEST_F(DeadlineTest, OfTheHandshakeFailsCallsWithoutADeadline) {
  const Mute mute;
  Agent hasty(AgentOptions{
      .name = "hasty", .handler_threads = 1, .handshake_timeout = 20ms, .log = [](const LogRecord&) {}});
  expect_error([&] { got(hasty.connect(mute.address()).call<&Clockwork::count>()); }, ErrorKind::unavailable,
               Execution::not_sent, "the peer did not finish the handshake");
}

TEST_F(DeadlineTest, AnAgentsDefaultAppliesToCallsWithoutADeadline) {
  constexpr auto nanoseconds = [](auto time) { return std::chrono::nanoseconds(time).count(); };
  EXPECT_FALSE(got(to_b->call<&Clockwork::left>()));
  cluster["a"].set_call_timeout(1h);
  const Left left = got(to_b->call<&Clockwork::left>());
  ASSERT_TRUE(left);
  EXPECT_LE(*left, nanoseconds(1h));
  EXPECT_GT(*left, nanoseconds(30min));
  EXPECT_GT(got(to_b->with(within(3h)).call<&Clockwork::left>()), Left(nanoseconds(1h)));
  EXPECT_FALSE(got(to_b->with(within(no_timeout)).call<&Clockwork::left>()));
  cluster["a"].set_call_timeout(no_timeout);
  EXPECT_FALSE(got(to_b->call<&Clockwork::left>()));
}

TEST_F(DeadlineTest, AnAgentsDefaultFailsACall) {
  auto before = to_b->call<&Clockwork::hang>();
  cluster["a"].set_call_timeout(20ms);
  EXPECT_EQ(kind_of([&] { got(to_b->call<&Clockwork::hang>()); }), ErrorKind::deadline_exceeded);
  EXPECT_FALSE(before.ready()) << "its deadline is that of the moment when it was made: none";
  test::eventually("the first is answered", [&] { return at_b().answer_all(), before.ready(); });
}

TEST(AgentsDeadline, IsSetByItsOptions) {
  Cluster cluster({.adjust = [](AgentOptions& options) { options.call_timeout = 1h; }});
  EXPECT_EQ(cluster.add("a").core()->default_timeout(), 1h);
}

}  // namespace
}  // namespace weft::rpc::deadline_test
