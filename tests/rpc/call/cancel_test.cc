// Cancellation: the error at the caller, the notification of the handler, and the calls that it reaches.
#include "tests/support/cluster.h"

namespace weft::rpc::cancel_test {
namespace {

using namespace test;

class Patient {
 public:
  explicit Patient(Agent& own) : own_(own) {}

  // Completes when it is cancelled, or when the test completes it.
  Future<void> hang(CallContext& call) {
    auto promise = std::make_shared<Promise<void>>();
    auto future = promise->future();
    {
      std::lock_guard lock(mutex_);
      hanging_.push_back(promise);
    }
    const auto forgotten = call.on_cancel([this] { forgotten_ran = true; });
    call.on_cancel([this, promise] {
      ++cancellations;
      promise->fail(Error(ErrorKind::aborted, "nobody wants it"));
      cancelled.set();
    });
    call.forget_cancel(forgotten);
    began.set();
    return future;
  }
  // Calls hang() at another peer.
  Task<void> hang_at(CallContext& call, std::string peer, bool handed_on) {
    Peer to = own_.peer(peer);
    if (handed_on) to = to.with(call);
    co_await to.call<&Patient::hang>();
  }
  // Waits for its cancellation, then records what the context reports and makes a nested call.
  Task<void> go_on(CallContext& call) {
    began.set();
    auto to_come = std::make_shared<Promise<void>>();
    auto cancellation = to_come->future();
    call.on_cancel([to_come] { to_come->complete(Result<void>{}); });
    co_await std::move(cancellation);
    saw_cancelled = call.cancelled();
    call.on_cancel([this] { late_job_ran = true; });
    nested_kind = co_await own_.peer("c").with(call).call<&Patient::hang>().then([](Result<void>&& result) {
      return kind_of([&] { std::move(result).get(); }).value_or(ErrorKind::internal);
    });
    cancelled.set();
  }
  void block() {
    began.set();
    released.wait();
  }
  void count() { ++counted; }

  using Service = rpc::Service<"patient", Method<"hang", &Patient::hang>,
                               Method<"hang_at", &Patient::hang_at>, Method<"go_on", &Patient::go_on>,
                               Method<"block", &Patient::block>, Method<"count", &Patient::count>>;

  Event began, cancelled, released;
  std::atomic<int> cancellations{0}, counted{0};
  std::atomic<bool> forgotten_ran{false}, saw_cancelled{false}, late_job_ran{false};
  std::atomic<ErrorKind> nested_kind{ErrorKind::internal};

 private:
  Agent& own_;
  std::mutex mutex_;  // guards hanging_
  std::vector<std::shared_ptr<Promise<void>>> hanging_;
};

void ping() {}
using Ping = Function<"weft.ping", &ping>;  // every agent serves it, on its loop

class CancelTest : public testing::Test {
 protected:
  // Agents with one handler thread, which serves calls of values one at a time.
  CancelTest() : cluster({.adjust = [](AgentOptions& options) { options.handler_threads = 1; }}) {
    for (const char* name : {"a", "b", "c"}) {
      Agent& agent = cluster.add(name);
      patients[name] = std::make_shared<Patient>(agent);
      agent.serve(patients[name]);
    }
    cluster.acquaint();
    to_b.emplace(cluster.peer("a", "b"));
  }
  ~CancelTest() override { at("b").released.set(); }
  Patient& at(const std::string& name) { return *patients.at(name); }

  Cluster cluster;
  std::map<std::string, std::shared_ptr<Patient>> patients;
  std::optional<Peer> to_b;
};

TEST_F(CancelTest, OfAScopeReachesPresentAndLaterCalls) {
  CancelScope scope;
  auto first = to_b->with(scope).call<&Patient::hang>();
  auto other = cluster.peer("a", "c").with(scope).call<&Patient::hang>();
  at("b").began.wait();
  at("c").began.wait();
  EXPECT_FALSE(scope.cancelled());
  CancelScope(scope).cancel();
  scope.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(first)); }), ErrorKind::cancelled);
  EXPECT_EQ(kind_of([&] { got(std::move(other)); }), ErrorKind::cancelled);
  expect_error([&] { got(to_b->with(scope).call<&Patient::hang>()); }, ErrorKind::cancelled,
               Execution::not_sent);
}

// A program cancels the other calls in flight when one of them has failed.
TEST_F(CancelTest, OfAScopeCancelsTheOtherCallsAfterAFailure) {
  CancelScope scope;
  std::vector<Future<void>> calls;
  calls.push_back(to_b->with(scope).call<&Patient::hang>());
  calls.push_back(to_b->with(scope).call<&Patient::hang_at>("nobody", false));
  calls.push_back(cluster.peer("a", "c").with(scope).call<&Patient::hang>());
  at("b").began.wait();
  at("c").began.wait();
  EXPECT_EQ(kind_of([&] { got(when_all_or_error(std::move(calls))); }), ErrorKind::not_found);
  EXPECT_EQ(at("b").cancellations + at("c").cancellations, 0) << "they go on";
  scope.cancel();
  at("b").cancelled.wait();
  at("c").cancelled.wait();
}

TEST_F(CancelTest, ReachesTheHandler) {
  auto call = to_b->call<&Patient::hang>();
  at("b").began.wait();
  call.cancel();
  expect_error([&] { got(std::move(call)); }, ErrorKind::cancelled, Execution::maybe_executed,
               whole("b: patient.hang: cancelled by the caller (may have run)"));
  at("b").cancelled.wait();
  got(to_b->call<&Patient::count>());
  EXPECT_EQ(at("b").cancellations, 1);
  EXPECT_FALSE(at("b").forgotten_ran);
}

TEST_F(CancelTest, ReachesThroughAChainOfFutures) {
  auto call = to_b->call<&Patient::hang>()
                  .then([](Result<void>&& result) { return std::move(result); })
                  .then([](Result<void>&& result) {
                    return kind_of([&] { std::move(result).get(); }).value_or(ErrorKind::internal);
                  });
  at("b").began.wait();
  call.cancel();
  EXPECT_EQ(got(std::move(call)), ErrorKind::cancelled);
  at("b").cancelled.wait();
}

TEST_F(CancelTest, ReachesNestedCalls) {
  auto call = to_b->call<&Patient::hang_at>("c", true);
  at("c").began.wait();
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  at("c").cancelled.wait();
}

TEST_F(CancelTest, DoesNotReachIndependentCallsOfAHandler) {
  auto call = to_b->call<&Patient::hang_at>("c", false);
  at("c").began.wait();
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  // These calls use the connections that a cancellation would use, and are sent after it.
  got(to_b->call<&Patient::count>());
  got(cluster.peer("b", "c").call<&Patient::count>());
  EXPECT_EQ(at("c").cancellations, 0);
}

TEST_F(CancelTest, AHandlerMayContinueAfterwards) {
  auto call = to_b->call<&Patient::go_on>();
  at("b").began.wait();
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  at("b").cancelled.wait();
  EXPECT_TRUE(at("b").saw_cancelled);
  EXPECT_TRUE(at("b").late_job_ran) << "a job that comes after the cancellation runs at once";
  EXPECT_EQ(at("b").nested_kind, ErrorKind::cancelled) << "so does a nested call end";
}

TEST_F(CancelTest, PreventsAQueuedCallFromRunning) {
  auto first = to_b->call<&Patient::block>();
  at("b").began.wait();
  auto second = to_b->call<&Patient::count>();
  second.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(second)); }), ErrorKind::cancelled);
  got(to_b->call<Ping>());  // runs on the loop: its reply shows that the cancellation has arrived
  at("b").released.set();
  got(std::move(first));
  got(to_b->call<&Patient::block>());  // runs after the calls that were queued before
  EXPECT_EQ(at("b").counted, 0);
}

TEST_F(CancelTest, OfACallThatWaitsForAConnection) {
  Agent& stranger = cluster.add("stranger");
  const HeldLoop deaf(cluster["b"]);
  auto call = stranger.connect("inproc://b").call<&Patient::count>();
  call.cancel();
  expect_error([&] { got(std::move(call)); }, ErrorKind::cancelled, Execution::not_sent);
}

TEST_F(CancelTest, HasNoEffectOnACompletedCall) {
  auto call = to_b->call<&Patient::count>();
  test::eventually("it has been answered", [&] { return call.ready(); });
  call.cancel();
  call.cancel();
  got(std::move(call));
}

TEST_F(CancelTest, CallsCompleteExactlyOnce) {
  constexpr int calls = 200;
  std::atomic<int> completed{0}, served{0}, cancelled{0}, other{0};
  for (int i = 0; i < calls; ++i) {
    auto call = to_b->call<&Patient::count>().then([&](Result<void>&& result) {
      const auto kind = kind_of([&] { std::move(result).get(); });
      ++(!kind ? served : *kind == ErrorKind::cancelled ? cancelled : other);
      ++completed;
      return Unit{};
    });
    if (i % 3 == 0) std::this_thread::yield();
    call.cancel();  // before or after the reply
  }
  test::eventually("all have completed", [&] { return completed == calls; });
  got(to_b->call<&Patient::count>());
  EXPECT_EQ(completed, calls);
  EXPECT_EQ(served + cancelled, calls);
  EXPECT_EQ(other, 0);
}

TEST_F(CancelTest, ReachesTheHandlerIfItsCallerIsGone) {
  auto call = to_b->call<&Patient::hang>();
  at("b").began.wait();
  to_b.reset();
  cluster.end("a");
  at("b").cancelled.wait();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::shut_down);
}

}  // namespace
}  // namespace weft::rpc::cancel_test
