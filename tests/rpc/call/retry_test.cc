// The calls that are retried, the times of their attempts, and their number.
#include "tests/support/cluster.h"

namespace weft::rpc::retry_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

std::exception_ptr failure(ErrorKind kind, Execution execution) {
  return std::make_exception_ptr(Error(kind, "x", execution));
}

TEST(Retry, DependsOnTheErrorAndOnWhetherTheCallMayHaveRun) {
  for (const auto kind : {ErrorKind::unavailable, ErrorKind::peer_lost, ErrorKind::shut_down}) {
    EXPECT_TRUE(is_retriable(failure(kind, Execution::not_sent), false)) << to_string(kind);
    EXPECT_FALSE(is_retriable(failure(kind, Execution::maybe_executed), false)) << to_string(kind);
    EXPECT_TRUE(is_retriable(failure(kind, Execution::maybe_executed), true)) << to_string(kind);
  }
  EXPECT_TRUE(is_retriable(failure(ErrorKind::resource_exhausted, Execution::not_sent), false));
  EXPECT_FALSE(is_retriable(failure(ErrorKind::resource_exhausted, Execution::maybe_executed), true));
  for (const auto kind : {ErrorKind::handler_failed, ErrorKind::deadline_exceeded, ErrorKind::cancelled,
                          ErrorKind::not_found, ErrorKind::permission_denied, ErrorKind::argument_modified})
    EXPECT_FALSE(is_retriable(failure(kind, Execution::not_sent), true)) << to_string(kind);
  EXPECT_FALSE(is_retriable(std::make_exception_ptr(std::runtime_error("x")), true));
  // An error from the peer is either a refusal before the handler ran, or the reply of the handler.
  for (const auto kind : {ErrorKind::unavailable, ErrorKind::peer_lost, ErrorKind::shut_down}) {
    const auto remote = [kind](Execution execution) {
      return std::make_exception_ptr(RemoteError(kind, "x", "bert", "m", {}, execution));
    };
    EXPECT_TRUE(is_retriable(remote(Execution::not_sent), false)) << to_string(kind);
    EXPECT_FALSE(is_retriable(remote(Execution::maybe_executed), true)) << to_string(kind);
  }
}

TEST(Retry, WaitsGrowToTheMaximumWithJitter) {
  const RetryPolicy policy{.attempts = 5, .first_wait = 100ms, .growth = 2, .max_wait = 300ms};
  const std::uint64_t least = 0, most = ~std::uint64_t{0};
  EXPECT_EQ(wait_before_retry(policy, 1, least), 50ms);
  EXPECT_EQ(wait_before_retry(policy, 2, least), 100ms);
  EXPECT_EQ(wait_before_retry(policy, 3, least), 150ms);
  EXPECT_EQ(wait_before_retry(policy, 4, least), 150ms);
  EXPECT_EQ(wait_before_retry(policy, 5, least), std::nullopt);
  EXPECT_GT(wait_before_retry(policy, 1, most), 99ms);
  EXPECT_LE(wait_before_retry(policy, 1, most), 100ms);
  EXPECT_EQ(wait_before_retry({.attempts = 1}, 1, least), std::nullopt);
}

TEST(Retry, RetriesSpendTheBudgetAndCallsRefillIt) {
  RetryBudget budget({.max = 2, .per_call = 0.5});
  EXPECT_TRUE(budget.take());
  EXPECT_TRUE(budget.take());
  EXPECT_FALSE(budget.take());
  budget.succeeded();
  EXPECT_FALSE(budget.take());
  budget.succeeded();
  EXPECT_TRUE(budget.take());
  for (int i = 0; i < 100; ++i) budget.succeeded();
  EXPECT_TRUE(budget.take() && budget.take());
  EXPECT_FALSE(budget.take());
}

class Till {
 public:
  // pay() returns the number of the attempt that succeeded. read() holds calls until the server dies.
  int pay(CallContext& call, int) { return call.attempt(); }
  Future<std::string> read(CallContext& call, std::string text, Buffer bytes) {
    std::lock_guard lock(mutex_);
    attempts_.push_back(call.attempt());
    if (!holding_) return Future<std::string>::made(text + std::to_string(bytes.size()));
    held_.emplace_back();
    return held_.back().future();
  }
  // A handler that fails because another service is unavailable.
  int consult(int) {
    ++consulted;
    throw Error(ErrorKind::unavailable, "the bank is closed");
  }
  std::atomic<int> consulted{0};
  void hold(bool holding) {
    std::lock_guard lock(mutex_);
    holding_ = holding;
  }
  std::vector<int> attempts() const {
    std::lock_guard lock(mutex_);
    return attempts_;
  }
  using Service =
      rpc::Service<"till", Method<"pay", &Till::pay>, Method<"read", &Till::read, rpc::idempotent>,
                   Method<"consult", &Till::consult, rpc::idempotent>>;

 private:
  mutable std::mutex mutex_;  // guards what follows
  bool holding_ = false;
  std::vector<int> attempts_;
  std::vector<Promise<std::string>> held_;
};

constexpr RetryPolicy soon{.attempts = 1000, .first_wait = 1ms, .max_wait = 2ms};

class RetryTest : public testing::Test {
 protected:
  RetryTest() { start_server(); }
  // The object is served before the agent listens, because the client may call at any time.
  void start_server() {
    cluster.add("server", {[this](Agent& agent) { agent.serve(till); }});
  }
  std::shared_ptr<Till> till = std::make_shared<Till>();
  Cluster cluster{{.adjust = [](AgentOptions& options) { options.retry_budget.max = 1e9; }}, {"client"}};
};

TEST_F(RetryTest, ACallWithoutAListenerIsRetriedUntilThereIsOne) {
  auto peer = cluster.peer("client", "server").with({.retry = soon});
  cluster.end("server");
  auto call = peer.call<&Till::pay>(5);
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 3; });
  EXPECT_FALSE(call.ready());
  start_server();
  EXPECT_GE(got(std::move(call)), 3) << "the handler sees which attempt it serves";
  test::eventually("no call is in flight", [&] { return cluster["client"].counts().waiting == 0; });
}

TEST_F(RetryTest, ACallThatMayHaveRunIsRetriedOnlyIfItsMethodIsIdempotent) {
  till->hold(true);
  auto peer = cluster.peer("client", "server").with({.retry = soon});
  auto read = peer.call<&Till::read>("bytes: ", Buffer::allocate(100'000));
  test::eventually("it has come", [&] { return till->attempts().size() == 1; });
  till->hold(false);
  cluster.end("server");
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 1; });
  start_server();
  EXPECT_EQ(got(std::move(read)), "bytes: 100000") << "with the same arguments";
  EXPECT_EQ(till->attempts().size(), 2U);
  EXPECT_GE(till->attempts().back(), 1);
}

TEST_F(RetryTest, ACallThatIsRefusedByALimitIsRetried) {
  cluster["server"].limit("till.read", {.running = 1});
  till->hold(true);
  auto peer = cluster.peer("client", "server");
  auto first = peer.call<&Till::read>("", Buffer());
  test::eventually("it has come", [&] { return till->attempts().size() == 1; });
  EXPECT_EQ(kind_of([&] { got(peer.call<&Till::read>("", Buffer())); }), ErrorKind::resource_exhausted);
  auto second = peer.with({.retry = soon}).call<&Till::read>("", Buffer());
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 2; });
  till->hold(false);
  first.cancel();  // the test does not complete it, so it stays in the queue
  cluster["server"].limit("till.read", {.running = 2});
  EXPECT_EQ(got(std::move(second)), "0");
}

TEST_F(RetryTest, AttemptsAndDeadlineLimitTheRetries) {
  auto peer = cluster.peer("client", "server");
  cluster.end("server");
  expect_error(
      [&] { got(peer.with({.retry = RetryPolicy{.attempts = 3, .first_wait = 1ms}}).call<&Till::pay>(5)); },
      ErrorKind::unavailable);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 2U);
  // A wait that would end beyond the deadline is not begun.
  expect_error(
      [&] {
        got(peer.with({.timeout = 30min, .retry = RetryPolicy{.first_wait = 2h, .max_wait = 2h}})
                .call<&Till::pay>(5));
      },
      ErrorKind::unavailable);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 2U);
}

TEST_F(RetryTest, ACallCanBeCancelledWhileItWaits) {
  auto peer = cluster.peer("client", "server").with({.retry = soon});
  cluster.end("server");
  auto call = peer.call<&Till::pay>(5);
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 1; });
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  CancelScope scope;
  auto scoped = peer.with(scope).call<&Till::pay>(5);
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 3; });
  scope.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(scoped)); }), ErrorKind::cancelled);
}

TEST_F(RetryTest, ACallCanBeCancelledBetweenTwoAttempts) {
  auto peer = cluster.peer("client", "server").with({.retry = RetryPolicy{.first_wait = 1h, .max_wait = 1h}});
  cluster.end("server");
  const auto waits = [&] {
    test::eventually("it waits for the next attempt",
                     [&] { return cluster["client"].counts().waiting == 0; });
  };
  auto call = peer.call<&Till::pay>(5);
  waits();
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  CancelScope scope;
  auto scoped = peer.with(scope).call<&Till::pay>(5);
  waits();
  scope.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(scoped)); }), ErrorKind::cancelled);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 0U);
}

TEST_F(RetryTest, AnErrorOfTheHandlerIsNotRetried) {
  auto peer = cluster.peer("client", "server").with({.retry = soon});
  EXPECT_EQ(kind_of([&] { got(peer.call<&Till::consult>(1)); }), ErrorKind::unavailable);
  EXPECT_EQ(till->consulted, 1);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 0U);
}

TEST(RetryLimits, CountTheBytesOfRetriedCalls) {
  Cluster cluster{{.adjust = [](AgentOptions& options) { options.limits.outgoing_bytes = 150'000; }},
                  {"client"}};
  auto till = std::make_shared<Till>();
  cluster.add("server", {[till](Agent& agent) { agent.serve(till); }});
  till->hold(true);
  Agent& client = cluster["client"];
  auto peer = cluster.peer("client", "server").with({.retry = RetryPolicy{.first_wait = 1h, .max_wait = 1h}});
  std::vector<Future<std::string>> calls;
  for (int i = 0; i < 2; ++i) calls.push_back(peer.call<&Till::read>("", Buffer::allocate(100'000)));
  const auto refused = [&] {
    return kind_of([&] { got(peer.call<&Till::read>("", Buffer::allocate(100'000))); }) ==
           ErrorKind::resource_exhausted;
  };
  EXPECT_GE(client.counts().waiting_bytes, 200'000U);
  EXPECT_TRUE(refused()) << "at once: room on this side is not waited for";
  cluster.end("server");
  test::eventually("both wait for their next attempt", [&] { return client.counts().waiting == 0; });
  EXPECT_GE(client.counts().waiting_bytes, 200'000U) << "they are kept meanwhile";
  EXPECT_TRUE(refused());
  for (auto& call : calls) {
    call.cancel();
    EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  }
  test::eventually("nothing is kept", [&] { return client.counts().waiting_bytes == 0; });
}

TEST_F(RetryTest, AnAgentThatEndsStopsItsRetries) {
  auto peer = cluster.peer("client", "server").with({.retry = soon});
  cluster.end("server");
  auto call = peer.call<&Till::pay>(5);
  test::eventually("it was retried", [&] { return cluster["client"].counts().calls_retried >= 1; });
  cluster.end("client");
  EXPECT_TRUE(kind_of([&] { got(std::move(call)); }));
}

TEST(RetryBudgetTest, LimitsTheRetriesOfAPeer) {
  Cluster cluster{{.adjust =
                       [](AgentOptions& options) {
                         options.retry_budget = {.max = 5, .per_call = 1};
                         options.retry = soon;
                       }},
                  {"client"}};
  auto& server = cluster.add("server");
  auto till = std::make_shared<Till>();
  server.serve(till);
  auto peer = cluster.peer("client", "server");
  cluster.end("server");
  EXPECT_EQ(kind_of([&] { got(peer.call<&Till::pay>(5)); }), ErrorKind::unavailable);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 5U);
  EXPECT_EQ(kind_of([&] { got(peer.call<&Till::pay>(5)); }), ErrorKind::unavailable);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 5U) << "it is spent";
  cluster.add("server").serve(till);
  EXPECT_EQ(got(peer.with({.wait_for_ready = true}).call<&Till::pay>(5)), 0);
  EXPECT_EQ(got(peer.call<&Till::pay>(5)), 0);
  cluster.end("server");
  EXPECT_EQ(kind_of([&] { got(peer.call<&Till::pay>(5)); }), ErrorKind::unavailable);
  EXPECT_EQ(cluster["client"].counts().calls_retried, 7U) << "two calls that went well earned two";
}

}  // namespace
}  // namespace weft::rpc::retry_test
