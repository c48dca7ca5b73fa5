// Remote calls whose results stay at the callee, with asynchronous handlers and nested calls; and deadlines
// of calls through RRefs. PyTorch's rpc_test.py and faulty_agent_rpc_test.py test the same behaviours.
#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref.h>

#include <numeric>

#include "tests/rref/rref_support.h"

namespace weft::rref::calls_test {
namespace {

std::shared_ptr<test::Event> gate, entered;

struct Slow : Counted {
  explicit Slow(std::int64_t v) : value(v) {
    if (v < 0) gate->wait();
  }
  std::int64_t get() const { return value; }
  std::int64_t get_slowly() const {
    entered->set();
    gate->wait();
    return value;
  }
  std::string tenant(rpc::CallContext& call) {
    return call.metadata("tenant").value_or("-") + "/" + call.metadata("user").value_or("-");
  }
  using Service =
      rpc::Service<"calls.slow", rpc::Constructor<std::int64_t>, rpc::Method<"get", &Slow::get>,
                   rpc::Method<"get_slowly", &Slow::get_slowly>, rpc::Method<"tenant", &Slow::tenant>>;
  std::int64_t value;
};

// Asynchronous handlers, each of which is called with `remote`.
struct Async : Counted {
  rpc::Future<std::int64_t> later(std::int64_t x) {
    rpc::Promise<std::int64_t> promise;
    auto future = promise.future();
    waiting = [x, held = std::make_shared<rpc::Promise<std::int64_t>>(std::move(promise))] {
      held->complete(10 * x);
    };
    return future;
  }
  void now() { std::exchange(waiting, nullptr)(); }
  rpc::Task<std::int64_t> add(RRef<Box> box, std::int64_t x) { co_return co_await box.call<&Box::add>(x); }
  rpc::Task<std::int64_t> fail_after(RRef<Box> box) {
    co_await box.call<&Box::get>();
    throw std::runtime_error("it failed on the way");
  }
  rpc::Task<std::int64_t> add_in_turn(RRef<Box> box, std::int64_t times) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < times; ++i) last = co_await box.call<&Box::add>(1);
    co_return last;
  }
  rpc::Task<std::int64_t> gather(RRef<Box> box, std::int64_t times) {
    std::vector<rpc::Future<std::int64_t>> calls;
    for (std::int64_t i = 0; i < times; ++i) calls.push_back(box.call<&Box::get>());
    const auto values = co_await rpc::when_all(std::move(calls));
    co_return std::accumulate(values.begin(), values.end(), std::int64_t{0});
  }
  using Service =
      rpc::Service<"calls.async", rpc::Constructor<>, rpc::Method<"later", &Async::later>,
                   rpc::Method<"now", &Async::now>, rpc::Method<"add", &Async::add>,
                   rpc::Method<"fail_after", &Async::fail_after>,
                   rpc::Method<"add_in_turn", &Async::add_in_turn>, rpc::Method<"gather", &Async::gather>>;
  std::function<void()> waiting;
};

rpc::Task<std::int64_t> add_to(RRef<Box> box, std::int64_t x) { co_return co_await box.call<&Box::add>(x); }
using AddTo = rpc::Function<"calls.add_to", &add_to>;

rpc::Future<std::int64_t> fail_at_once(std::int64_t) { throw std::runtime_error("it never began"); }
using FailAtOnce = rpc::Function<"calls.fail_at_once", &fail_at_once>;

rpc::Task<std::int64_t> fail_later(RRef<Box> box) {
  co_await box.call<&Box::get>();
  throw std::runtime_error("it failed on the way");
}
using FailLater = rpc::Function<"calls.fail_later", &fail_later>;

std::int64_t look_at(RRef<Box> box) { return box.is_confirmed() ? 1 : 0; }
using LookAt = rpc::Function<"calls.look_at", &look_at>;

std::int64_t slow_number(std::int64_t x) {
  gate->wait();
  return x;
}
using SlowNumber = rpc::Function<"calls.slow_number", &slow_number>;

[[noreturn]] void fail_in_lines() { throw std::runtime_error("one\ntwo\t\"three\"\\\n"); }
using FailInLines = rpc::Function<"calls.fail_in_lines", &fail_in_lines>;

class CallsTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    gate = std::make_shared<test::Event>();
    entered = std::make_shared<test::Event>();
    start({"owner", "anna", "bert"});
    for (const auto* name : {"owner", "anna", "bert"}) {
      rpc::Agent& one = agent(name);
      one.allow_create<Slow>();
      one.allow_create<Async>();
      one.serve<AddTo>();
      one.serve<FailAtOnce>();
      one.serve<FailLater>();
      one.serve<LookAt>();
      one.serve<SlowNumber>();
      one.serve<FailInLines>();
    }
    for (const auto* from : {"owner", "anna", "bert"})
      for (const auto* to : {"owner", "anna", "bert"}) peer(from, to);
    box = create<Box>(peer("anna", "owner"), 1);
  }
  void TearDown() override {
    gate->set();
    box = {};
    RRefTest::TearDown();
  }
  // Expects that f fails because of a deadline: by the caller's clock, or by the owner's check.
  template <class F>
  static void expect_late(F&& f) {
    const auto kind = kind_of(f);
    EXPECT_TRUE(kind == ErrorKind::deadline_exceeded || kind == ErrorKind::failed_precondition)
        << (kind ? to_string(*kind) : "no error");
  }
  static rpc::CallOptions hurried() { return {.timeout = std::chrono::milliseconds{20}}; }
  RRef<Box> box;
};

// --- Results of asynchronous handlers, kept where they are made ---

TEST_F(CallsTest, RemoteOfAFutureThatIsCompletedLater) {
  const auto async = create<Async>(peer("anna", "bert"));
  const RRef<std::int64_t> later = async.remote<&Async::later>(4);
  auto here = later.to_here();
  EXPECT_FALSE(here.ready());
  got(async.call<&Async::now>());
  EXPECT_EQ(got(std::move(here)), 40);
}

TEST_F(CallsTest, RemoteOfAnAsynchronousFreeFunction) {
  EXPECT_EQ(got(remote<AddTo>(peer("anna", "bert"), box, 2).to_here()), 3);
}

TEST_F(CallsTest, RemoteThroughAnRRefOfAnAsynchronousMethod) {
  const auto async = create<Async>(peer("anna", "bert"));
  EXPECT_EQ(got(async.remote<&Async::add>(box, 2).to_here()), 3);
}

TEST_F(CallsTest, RemoteOfAHandlerThatAwaitsManyCallsInTurn) {
  const auto async = create<Async>(peer("anna", "bert"));
  EXPECT_EQ(got(async.remote<&Async::add_in_turn>(box, 20).to_here()), 21);
}

TEST_F(CallsTest, AHandlerGathersManyCalls) {
  const auto async = create<Async>(peer("anna", "bert"));
  EXPECT_EQ(got(async.call<&Async::gather>(box, 20)), 20);
  EXPECT_EQ(got(async.remote<&Async::gather>(box, 20).to_here()), 20);
}

TEST_F(CallsTest, FetchFailsWithTheErrorOfTheAsynchronousHandler) {
  const auto async = create<Async>(peer("anna", "bert"));
  const auto at_once = message_of([&] { got(remote<FailAtOnce>(peer("anna", "bert"), 1).to_here()); });
  EXPECT_NE(at_once.find("it never began"), std::string::npos) << at_once;
  for (const RRef<std::int64_t>& failed :
       {remote<FailLater>(peer("anna", "bert"), box), async.remote<&Async::fail_after>(box)}) {
    const auto later = message_of([&] { got(failed.to_here()); });
    EXPECT_NE(later.find("it failed on the way"), std::string::npos) << later;
  }
}

struct NotServed {
  static std::int64_t f(std::int64_t x) { return x; }
};
using Unserved = rpc::Function<"calls.unserved", &NotServed::f>;

TEST_F(CallsTest, RemoteToTheOwnAgentOfAnUnservedMethodFails) {
  const auto text = message_of([&] { got(remote<Unserved>(peer("anna", "anna"), 1).to_here()); });
  EXPECT_NE(text.find("no such method"), std::string::npos) << text;
}

TEST_F(CallsTest, RemoteWithAFailedArgumentFailsWithTheErrorOfTheArgument) {
  const RRef<std::int64_t> bad = remote<FailAtOnce>(peer("anna", "bert"), 1);
  for (const char* where : {"anna", "bert"}) {
    const auto text = message_of([&] { got(remote<FailAtOnce>(peer("anna", where), bad).to_here()); });
    EXPECT_NE(text.find("it never began"), std::string::npos) << text;
  }
}

TEST_F(CallsTest, RemoteRunsOnceItsReferenceArgumentIsConfirmed) {
  got(box.ready());
  eventually("it is confirmed", [&] { return box.is_confirmed(); });
  HeldLoop owner(agent("owner"));
  const RRef<std::int64_t> looked = remote<LookAt>(peer("anna", "bert"), box);
  auto here = looked.to_here();
  eventually("bert has the fork", [&] { return context("bert")->live_forks().size() == 1; });
  EXPECT_FALSE(here.ready());
  owner.release();
  EXPECT_EQ(got(std::move(here)), 1);
}

TEST_F(CallsTest, AnErrorsTextArrivesWithItsLines) {
  const auto message = message_of([&] { got(peer("anna", "bert").call<FailInLines>()); });
  EXPECT_NE(message.find("one\ntwo\t\"three\"\\\n"), std::string::npos) << message;
}

// --- Deadlines ---

TEST_F(CallsTest, AFetchPastItsDeadlineFailsAndALaterFetchSucceeds) {
  const auto slow = remote<SlowNumber>(peer("anna", "owner"), 7);
  EXPECT_EQ(kind_of([&] { got(slow.with(hurried()).to_here()); }), ErrorKind::deadline_exceeded);
  gate->set();
  EXPECT_EQ(got(slow.to_here()), 7);
}

TEST_F(CallsTest, ASlowMethodPastItsDeadline) {
  const auto slow = create<Slow>(peer("anna", "owner"), 3);
  got(slow.ready());
  const auto in_a_hurry = slow.with(hurried());
  EXPECT_EQ(kind_of([&] { got(in_a_hurry.call<&Slow::get_slowly>()); }), ErrorKind::deadline_exceeded);
  gate->set();
  EXPECT_EQ(got(slow.call<&Slow::get>()), 3);
}

TEST_F(CallsTest, HandlesAccumulateOptions) {
  const auto slow = create<Slow>(peer("anna", "owner"), 3);
  got(slow.ready());
  EXPECT_EQ(kind_of([&] { got(slow.with(hurried()).with({.idempotent = true}).call<&Slow::get_slowly>()); }),
            ErrorKind::deadline_exceeded);
  agent("anna").set_call_timeout(std::chrono::milliseconds{20});
  EXPECT_EQ(kind_of([&] { got(slow.with({.idempotent = true}).call<&Slow::get_slowly>()); }),
            ErrorKind::deadline_exceeded)
      << "the agent's, where the handle has none";
  auto patient = slow.with({.timeout = rpc::no_timeout}).with({.idempotent = true}).call<&Slow::get>();
  gate->set();
  EXPECT_EQ(got(std::move(patient)), 3);
}

TEST_F(CallsTest, CallsThroughAnRRefCarryItsMetadata) {
  const auto slow = create<Slow>(peer("anna", "owner"), 3);
  const auto both = slow.with_metadata({{"tenant", "a"}}).with(hurried()).with_metadata({{"user", "u"}});
  EXPECT_EQ(got(both.with({.timeout = rpc::no_timeout}).call<&Slow::tenant>()), "a/u");
  EXPECT_EQ(got(slow.call<&Slow::tenant>()), "-/-");
  const auto kept = both.with({.timeout = rpc::no_timeout}).remote<&Slow::tenant>();
  EXPECT_EQ(got(kept.to_here()), "a/u");
}

// If the call has not begun at its deadline, the owner refuses it. If it has begun, the owner keeps its
// result.
TEST_F(CallsTest, RemotePastItsDeadlineKeepsTheResultOrFails) {
  const auto slow = create<Slow>(peer("anna", "owner"), 3);
  auto blocks = slow.call<&Slow::get_slowly>();
  entered->wait();
  const auto late = slow.with(hurried()).remote<&Slow::get>();
  expect_late([&] { got(late.with(hurried()).to_here()); });
  gate->set();
  EXPECT_EQ(got(std::move(blocks)), 3);
  try {
    EXPECT_EQ(got(late.to_here()), 3);
  } catch (const rpc::Error&) {  // the fetch fails, but does not hang
    expect_late([&] { got(late.to_here()); });
  }
}

}  // namespace
}  // namespace weft::rref::calls_test
