// Remote calls whose results stay at the callee, with handlers that complete later: coroutines, futures, many
// nested calls. Also deadlines, owners and traces of these calls.
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/trace/tracer.h>

#include <algorithm>
#include <unordered_map>

#include "tests/rref/rref_support.h"

namespace weft::rref::results_test {
namespace {

rpc::Task<std::int64_t> ask_and_add(rpc::CallContext& call, RRef<Box> box, std::int64_t x) {
  co_return co_await box.with(call).call<&Box::get>() + x;
}
using AskAndAdd = rpc::Function<"ask_and_add", &ask_and_add>;

// Its methods call a box on another agent.
struct Asker : Counted {
  rpc::Task<std::int64_t> ask(rpc::CallContext& call, RRef<Box> box, std::int64_t x) {
    co_return co_await box.with(call).call<&Box::get>() + x;
  }
  rpc::Task<std::int64_t> in_turn(rpc::CallContext& call, RRef<Box> box, std::int64_t times) {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < times; ++i) sum += co_await box.with(call).call<&Box::get>();
    co_return sum;
  }
  rpc::Task<std::int64_t> at_once(rpc::CallContext& call, RRef<Box> box, std::int64_t times) {
    std::vector<rpc::Future<std::int64_t>> calls;
    for (std::int64_t i = 0; i < times; ++i) calls.push_back(box.with(call).call<&Box::get>());
    const std::vector<std::int64_t> values = co_await rpc::when_all(std::move(calls));
    std::int64_t sum = 0;
    for (const std::int64_t value : values) sum += value;
    co_return sum;
  }
  rpc::Task<std::int64_t> fail_there(rpc::CallContext& call, RRef<Box> box) {
    co_await box.with(call).call<&Box::fail>("out of order");
    co_return 0;
  }
  bool sees_confirmed(RRef<Box> box) { return box.is_confirmed(); }
  using Service =
      rpc::Service<"asker", rpc::Constructor<>, rpc::Method<"ask", &Asker::ask>,
                   rpc::Method<"in_turn", &Asker::in_turn>, rpc::Method<"at_once", &Asker::at_once>,
                   rpc::Method<"fail_there", &Asker::fail_there>,
                   rpc::Method<"sees_confirmed", &Asker::sees_confirmed>>;
};

// Served by the owner: a future that the test completes, and a method that keeps its thread until then.
struct Later {
  rpc::Future<std::int64_t> value() {
    auto future = promise.future();
    entered.set();
    return future;
  }
  std::int64_t wait() {
    entered.set();
    gate.wait();
    return 9;
  }
  using Service =
      rpc::Service<"later", rpc::Method<"value", &Later::value>, rpc::Method<"wait", &Later::wait>>;
  rpc::Promise<std::int64_t> promise;
  test::Event entered, gate;
};

struct SlowBox : Counted {
  explicit SlowBox(std::int64_t v) : value(v) { gate->wait(); }
  std::int64_t get() const { return value; }
  std::int64_t wait() {
    waiting->wait();
    return value;
  }
  using Service = rpc::Service<"slow_box", rpc::Constructor<std::int64_t>, rpc::Method<"get", &SlowBox::get>,
                               rpc::Method<"wait", &SlowBox::wait>>;
  std::int64_t value;
  static inline std::shared_ptr<test::Event> gate, waiting;
};

const rpc::CallOptions hurried{.timeout = std::chrono::milliseconds{20}},
    longer{.timeout = std::chrono::milliseconds{1100}};

class RRefResults : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "user", "third"});
    agent("owner").allow_create<Asker>();
    agent("owner").serve<AskAndAdd>();
    agent("owner").serve(later);
    for (const auto name : {"owner", "user"}) agent(name).allow_create<SlowBox>();
    SlowBox::gate = std::make_shared<test::Event>();
    SlowBox::waiting = std::make_shared<test::Event>();
  }
  void TearDown() override {
    for (test::Event* each : {SlowBox::gate.get(), SlowBox::waiting.get(), &later->gate}) each->set();
    RRefTest::TearDown();
  }
  rpc::Peer to_owner() { return peer("user", "owner"); }
  RRef<Box> box(std::int64_t value) { return create<Box>(peer("user", "third"), value); }

  std::shared_ptr<Later> later = std::make_shared<Later>();
};

TEST_F(RRefResults, OfAsynchronousFunctionsAndMethods) {
  const auto five = box(5);
  EXPECT_EQ(got(remote<AskAndAdd>(to_owner(), five, 3).to_here()), 8) << "a free function";
  const auto asker = create<Asker>(to_owner());
  EXPECT_EQ(got(asker.remote<&Asker::ask>(five, 4).to_here()), 9) << "a method through an RRef";
  EXPECT_EQ(got(asker.remote<&Asker::in_turn>(five, 10).to_here()), 50) << "ten calls in turn";
}

TEST_F(RRefResults, OfAHandlerThatMakesTwentyCallsAtOnce) {
  const auto five = box(5);
  const auto asker = create<Asker>(to_owner());
  EXPECT_EQ(got(asker.call<&Asker::at_once>(five, 20)), 100);
  auto several = asker.call<&Asker::at_once>(five, 20);
  EXPECT_EQ(got(asker.remote<&Asker::at_once>(five, 20).to_here()), 100);
  EXPECT_EQ(got(std::move(several)), 100);
}

TEST_F(RRefResults, OfAFutureThatIsCompletedLater) {
  const RRef<std::int64_t> value = remote<&Later::value>(to_owner());
  auto fetched = value.to_here();
  later->entered.wait();
  EXPECT_FALSE(fetched.ready());
  later->promise.complete(7);
  EXPECT_EQ(got(std::move(fetched)), 7);
}

TEST_F(RRefResults, OfAnAsynchronousHandlerThatFailed) {
  const auto five = box(5);
  const auto asker = create<Asker>(to_owner());
  const auto failed = asker.remote<&Asker::fail_there>(five);
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(message_of([&] { got(failed.to_here()); }).find("out of order"), std::string::npos);
}

TEST_F(RRefResults, OfCallsWhoseArgumentsAreConfirmedFirst) {
  const auto asker = create<Asker>(to_owner());
  for (int i = 0; i < 20; ++i) {
    const auto fresh = box(i);
    EXPECT_TRUE(got(asker.remote<&Asker::sees_confirmed>(fresh).to_here()));
  }
}

TEST_F(RRefResults, HaveTheirOwnersAsKeys) {
  const auto mine = local(agent("user"), std::int64_t{40}), more = local(agent("user"), std::int64_t{50});
  const auto a = remote<&Keeper::ping>(to_owner()), b = remote<&Keeper::ping>(to_owner());
  EXPECT_EQ(a.owner(), b.owner());
  EXPECT_EQ(mine.owner(), more.owner());
  EXPECT_EQ(mine.owner(), agent("user").id());
  EXPECT_NE(a.owner(), mine.owner());
  std::unordered_map<rpc::AgentId, RRefId> by_owner;
  for (const auto& each : {mine, more, a, b}) by_owner.emplace(each.owner(), each.id());
  EXPECT_EQ(by_owner.size(), 2U);
  EXPECT_EQ(by_owner.at(more.owner()), mine.id());
  EXPECT_EQ(by_owner.at(b.owner()), a.id());
  got(a.to_here());
  got(b.to_here());
}

TEST_F(RRefResults, OfASlowMethodAreFetchedAfterAnEarlierFetchTimedOut) {
  SlowBox::gate->set();
  const auto slow = create<SlowBox>(to_owner(), 5);
  EXPECT_EQ(kind_of([&] { got(slow.with(hurried).call<&SlowBox::wait>()); }), ErrorKind::deadline_exceeded);
  const auto result = slow.remote<&SlowBox::wait>();
  EXPECT_EQ(kind_of([&] { got(result.with(hurried).to_here()); }), ErrorKind::deadline_exceeded);
  auto patient = result.to_here();
  EXPECT_FALSE(patient.ready());
  SlowBox::waiting->set();
  EXPECT_EQ(got(std::move(patient)), 5) << "the value, though a fetch of it was given up";
  EXPECT_EQ(got(result.with(rpc::CallOptions{.timeout = std::chrono::minutes{1}}).to_here()), 5);
}

TEST_F(RRefResults, OfASlowCreationAreUsableAfterReadyTimedOut) {
  for (const std::string owner : {"owner", "user"}) {
    SlowBox::gate = std::make_shared<test::Event>();
    const auto slow = create<SlowBox>(peer("user", owner), 5);
    EXPECT_EQ(kind_of([&] { got(slow.with(hurried).ready()); }), ErrorKind::deadline_exceeded) << owner;
    const auto late =
        create<SlowBox>(peer("user", owner).with(rpc::CallOptions{.timeout = std::chrono::seconds{1}}), 6);
    auto value = late.call<&SlowBox::get>();
    EXPECT_EQ(kind_of([&] { got(late.with(longer).ready()); }), ErrorKind::deadline_exceeded) << owner;
    SlowBox::gate->set();
    got(slow.ready());
    EXPECT_EQ(got(std::move(value)), 6) << owner;
  }
}

// Both threads of the owner are busy until the creation's deadline has passed, so the creation never starts.
TEST_F(RRefResults, OfACreationThatExpiredBeforeItsStartAreErrors) {
  SlowBox::gate->set();
  auto first = to_owner().call<&Later::wait>();
  auto second = to_owner().call<&Later::wait>();
  later->entered.wait();
  const int made = Counted::made;
  const auto late = create<SlowBox>(to_owner().with(hurried), 5);
  EXPECT_EQ(kind_of([&] { got(late.with(longer).ready()); }), ErrorKind::deadline_exceeded);
  later->gate.set();
  EXPECT_EQ(got(std::move(first)) + got(std::move(second)), 18);
  EXPECT_EQ(kind_of([&] { got(late.call<&SlowBox::get>()); }), ErrorKind::failed_precondition)
      << "what its owner says of it; its creator had given it up";
  EXPECT_EQ(Counted::made, made);
}

class RRefTraces : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    cluster.emplace(Cluster::Options{layers(), false, {}});
    for (const auto& [name, tracer] : tracers) {
      rpc::Layers all = layers();
      // The tracer's layer may precede or follow the other layers.
      all.insert(name == "user" ? all.begin() : all.end(), tracer->layer());
      cluster->add(name, std::move(all)).allow_create<Box>();
    }
  }
  std::vector<rpc::Span> spans(const std::string& agent, const std::string& name, bool served) {
    for (const rpc::Span& span : tracers.at(agent)->take().spans) taken[agent].push_back(span);
    std::vector<rpc::Span> found;
    for (const rpc::Span& span : taken[agent])
      if (span.name == name && span.served == served) found.push_back(span);
    return found;
  }
  std::map<std::string, std::shared_ptr<rpc::Tracer>> tracers{{"owner", std::make_shared<rpc::Tracer>()},
                                                              {"user", std::make_shared<rpc::Tracer>()}};
  std::map<std::string, std::vector<rpc::Span>> taken;
};

TEST_F(RRefTraces, LinkCreationsAndRemoteCallsToTheirHandlers) {
  for (const std::string owner : {"owner", "user"}) {
    const auto box = create<Box>(peer("user", owner), 5);
    const auto value = box.remote<&Box::get>();
    EXPECT_EQ(got(value.to_here()), 5);
    for (const std::string method : {"box.new", "box.get"}) {
      eventually("the reply to its creator has arrived too",
                 [&] { return !spans("user", method, false).empty(); });
      const auto made = spans("user", method, false), served = spans(owner, method, true);
      ASSERT_EQ(made.size(), 1U) << method << " on " << owner;
      ASSERT_EQ(served.size(), 1U) << method << " on " << owner;
      EXPECT_EQ(served[0].parent, made[0].id);
      EXPECT_EQ(served[0].trace_low, made[0].trace_low);
      EXPECT_EQ(made[0].peer, owner);
      EXPECT_EQ(served[0].peer, "user");
    }
    taken.clear();
  }
}

}  // namespace
}  // namespace weft::rref::results_test
