#include <weft/rpc/agent/calls_in_flight.h>

#include "tests/support/cluster.h"

namespace weft::rpc::calls_in_flight_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

struct Last {
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"last", Method<"block", &Last::block>>;
  Event began, released;
};

struct Middle {
  Future<void> ask(CallContext& call) { return last->with(call).call<&Last::block>(); }
  using Service = rpc::Service<"middle", Method<"ask", &Middle::ask>>;
  std::optional<Peer> last;
};

class CallsInFlightTest : public testing::Test {
 protected:
  CallsInFlightTest() {
    cluster["b"].serve(middle);
    cluster["c"].serve(last);
    middle->last = cluster.peer("b", "c");
  }
  ~CallsInFlightTest() override { last->released.set(); }
  // A separate agent asks, so that the query itself appears only there.
  CallsInFlight ask(const std::string& agent) { return got(calls_in_flight(cluster.peer("asker", agent))); }

  std::shared_ptr<Middle> middle = std::make_shared<Middle>();
  std::shared_ptr<Last> last = std::make_shared<Last>();
  Cluster cluster{{}, {"a", "asker", "b", "c"}};
};

TEST_F(CallsInFlightTest, AnIdleAgentHasNone) {
  const CallsInFlight calls = ask("b");
  EXPECT_EQ(calls.name, "b");
  EXPECT_EQ(calls.incarnation, cluster["b"].id().incarnation);
  EXPECT_EQ(calls.handler_threads, 2U);
  EXPECT_EQ(calls.silent_loops, 0U);
  EXPECT_TRUE(calls.served.empty());  // the query itself is not listed
  EXPECT_TRUE(calls.made.empty());
}

TEST_F(CallsInFlightTest, ACallHasTheSameIdOnBothSidesAndLinksToNestedCalls) {
  auto call = cluster.peer("a", "b").with({.timeout = 1h}).call<&Middle::ask>();
  last->began.wait();
  // The handler has made its nested call, and its call has completed.
  eventually("it is suspended", [&] {
    const CallsInFlight b = ask("b");
    return b.served.size() == 1 && b.served[0].state == "suspended";
  });
  const CallsInFlight a = ask("a"), b = ask("b"), c = ask("c");
  ASSERT_EQ(a.made.size(), 1U);
  EXPECT_EQ(a.made[0].method, "middle.ask");
  EXPECT_EQ(a.made[0].peer, "b");
  EXPECT_EQ(a.made[0].state, "sent");
  EXPECT_EQ(a.made[0].serving.id, 0U);
  EXPECT_GT(a.made[0].left, 3000);
  EXPECT_GE(a.made[0].age, 0);

  const CallName first{"a", cluster["a"].id().incarnation, a.made[0].id};
  ASSERT_EQ(b.served.size(), 1U);
  EXPECT_EQ(b.served[0].call, first);
  EXPECT_EQ(b.served[0].method, "middle.ask");
  EXPECT_EQ(b.served[0].state, "suspended");
  EXPECT_EQ(b.served[0].on, "handlers");
  ASSERT_EQ(b.made.size(), 1U);
  EXPECT_EQ(b.made[0].serving, first);
  EXPECT_EQ(b.made[0].peer, "c");

  ASSERT_EQ(c.served.size(), 1U);
  EXPECT_EQ(c.served[0].state, "running");
  EXPECT_EQ(c.served[0].call, (CallName{"b", cluster["b"].id().incarnation, b.made[0].id}));
  EXPECT_TRUE(c.made.empty());
  last->released.set();
  got(std::move(call));
  eventually("all is over",
             [&] { return ask("a").made.empty() && ask("b").served.empty() && ask("c").served.empty(); });
}

TEST_F(CallsInFlightTest, ACallThatWaitsForAThreadIsQueued) {
  std::vector<Future<void>> calls;
  for (int i = 0; i < 3; ++i)
    calls.push_back(cluster.peer("a", "c").call<&Last::block>());  // there are two threads
  const auto in_state = [&](const std::string& state) {
    const CallsInFlight c = ask("c");
    return std::count_if(c.served.begin(), c.served.end(),
                         [&](const auto& call) { return call.state == state; });
  };
  eventually("two run", [&] { return in_state("running") == 2; });
  eventually("one is queued", [&] { return in_state("queued") == 1; });
  const CallsInFlight c = ask("c");
  EXPECT_EQ(c.served[0].queue, c.served[2].queue);
  last->released.set();
  for (auto& call : calls) got(std::move(call));
}

TEST_F(CallsInFlightTest, ACallBeyondTheMethodsLimitIsQueued) {
  cluster["c"].core()->methods().limit("last.block", {.running = 1, .waiting = 5});
  auto first = cluster.peer("a", "c").call<&Last::block>();
  last->began.wait();
  auto second = cluster.peer("a", "c").call<&Last::block>();
  CallsInFlight c;
  eventually("it has come", [&] { return (c = ask("c")).served.size() == 2; });
  EXPECT_EQ(c.served[0].on, "handlers");
  EXPECT_EQ(c.served[1].state, "queued");
  EXPECT_EQ(c.served[1].on, "limit");
  last->released.set();
  got(std::move(first));
  got(std::move(second));
}

TEST_F(CallsInFlightTest, ACallThatWaitsForAConnectionIsNotSent) {
  HeldLoop held(cluster["c"]);
  Agent& d = cluster.add("d");
  auto call = d.connect(cluster["c"].addresses().front()).call<&Last::block>();
  CallsInFlight calls;
  eventually("it is seen", [&] { return (calls = ask("d")).made.size() == 1; });
  EXPECT_EQ(calls.made[0].state, "connecting");
  EXPECT_EQ(calls.made[0].method, "last.block");
  EXPECT_EQ(calls.made[0].left, -1);
  held.release();
  last->released.set();
  got(std::move(call));
}

TEST_F(CallsInFlightTest, ABlockedLoopIsReported) {
  auto call = cluster.peer("a", "c").call<&Last::block>();
  last->began.wait();
  EXPECT_EQ(calls_in_flight(cluster["c"].core(), test::too_long).served.size(), 1U);
  {
    HeldLoop held(cluster["c"]);
    const CallsInFlight calls = calls_in_flight(cluster["c"].core(), 1ms);
    EXPECT_EQ(calls.silent_loops, 1U);
    EXPECT_TRUE(calls.served.empty());
    EXPECT_EQ(calls.name, "c");
  }
  last->released.set();
  got(std::move(call));
}

TEST_F(CallsInFlightTest, AreFormattedAsLines) {
  CallsInFlight calls;
  calls.name = "b";
  calls.silent_loops = 1;
  calls.made.push_back({7, "last.block", "c", 2.5, "connecting", 4, {"a", 1, 3}});
  calls.made.push_back({8, "last.block", "c", 1, "sent", -1, {}});
  calls.served.push_back({{"a", 1, 3}, "middle.ask", 2.75, "queued", "object", 9});
  EXPECT_EQ(text_of(calls),
            "b: 2 calls waited for, 1 served; 1 loops do not answer\n"
            "  waits 2.500 s for last.block on c (#7), not sent: no connection, deadline in 4.000 s, on "
            "behalf of a#3\n"
            "  waits 1.000 s for last.block on c (#8)\n"
            "  serves middle.ask of a#3 since 2.750 s, queued for the object\n");
}

TEST_F(CallsInFlightTest, NamesOfPeersAreEscaped) {
  CallsInFlight calls;
  calls.name = "b";
  calls.made.push_back({7, "ask\x1b[2J", "peer\x1b[2J", 1, "sent", -1, {"serving\x1b[2J", 1, 3}});
  calls.served.push_back({{"caller\x1b[2J", 1, 3}, "ask\x1b[2J", 1, "queued", "object", 9});
  const std::string text = text_of(calls);
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  for (const char* name : {"ask", "peer", "serving", "caller"})
    EXPECT_NE(text.find(std::string(name) + "\\x1b[2J"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::rpc::calls_in_flight_test
