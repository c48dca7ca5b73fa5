// Deadlines of creations that are slow or never start, and traces of creations and remote calls.
#include <weft/rpc/trace/tracer.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::results_test {
namespace {

// Served by the owner: a method that keeps its thread until the test opens the gate.
struct Later {
  std::int64_t wait() {
    entered.set();
    gate.wait();
    return 9;
  }
  using Service = rpc::Service<"later", rpc::Method<"wait", &Later::wait>>;
  test::Event entered, gate;
};

struct SlowBox : Counted {
  explicit SlowBox(std::int64_t v) : value(v) { gate->wait(); }
  std::int64_t get() const { return value; }
  using Service = rpc::Service<"slow_box", rpc::Constructor<std::int64_t>, rpc::Method<"get", &SlowBox::get>>;
  std::int64_t value;
  static inline std::shared_ptr<test::Event> gate;
};

const rpc::CallOptions hurried{.timeout = std::chrono::milliseconds{20}},
    longer{.timeout = std::chrono::milliseconds{1100}};

class RRefResults : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "user"});
    agent("owner").serve(later);
    for (const auto name : {"owner", "user"}) agent(name).allow_create<SlowBox>();
    SlowBox::gate = std::make_shared<test::Event>();
  }
  void TearDown() override {
    for (test::Event* each : {SlowBox::gate.get(), &later->gate}) each->set();
    RRefTest::TearDown();
  }
  rpc::Peer to_owner() { return peer("user", "owner"); }

  std::shared_ptr<Later> later = std::make_shared<Later>();
};

TEST_F(RRefResults, OfASlowCreationAreUsableAfterReadyTimedOut) {
  for (const std::string owner : {"owner", "user"}) {
    SlowBox::gate = std::make_shared<test::Event>();
    const auto slow = create<SlowBox>(peer("user", owner), 5);
    EXPECT_EQ(kind_of([&] { got(slow.with(hurried).ready()); }), ErrorKind::deadline_exceeded) << owner;
    const auto late =
        create<SlowBox>(peer("user", owner).with(rpc::CallOptions{.timeout = std::chrono::seconds{1}}), 6);
    auto value = late.call<&SlowBox::get>();
    EXPECT_EQ(kind_of([&] { got(late.with(longer).ready()); }), ErrorKind::deadline_exceeded) << owner;
    eventually("the user has asked the owner for the state of the creation",
               [&] { return late.is_confirmed(); });
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
