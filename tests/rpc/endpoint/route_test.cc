// The connections of a route: timeouts of an attempt, the backoff between attempts, and the calls that wait
// for a connection.
#include <weft/rpc/endpoint/route.h>

#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/testing/simulation/sim_agent.h>
#include <weft/rpc/testing/simulation/sim_transport.h>

#include <asio/io_context.hpp>

#include "tests/support/cluster.h"
#include "tests/support/full_backlog.h"
#include "tests/support/loopback.h"
#include "tests/support/lost_connections.h"
#include "tests/support/processor_time.h"

namespace weft::rpc::route_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

class Desk {
 public:
  int twice(int n) const { return 2 * n; }
  using Service = rpc::Service<"desk", Method<"twice", &Desk::twice, non_blocking>>;
};

// --- Over real sockets ---

TEST(Connecting, ToAnUnresponsiveHostTimesOut) {
  const test::FullBacklog full;
  Agent agent({.name = "a", .connect_timeout = 50ms});
  expect_error([&] { got(agent.connect(full.address()).call<&Desk::twice>(1)); }, ErrorKind::unavailable,
               Execution::not_sent, "connect_timeout");
}

TEST(Connecting, IsLimitedByTheTimeoutOfTheCall) {
  const test::FullBacklog full;
  Agent agent({.name = "a"});
  const Peer peer = agent.connect(full.address());
  const auto call = [&](CallOptions options) {
    return kind_of([&] { got(peer.with(options).call<&Desk::twice>(1)); });
  };
  EXPECT_EQ(call({.connect_within = 20ms}), ErrorKind::unavailable);
  EXPECT_EQ(call({.timeout = 1h, .connect_within = 20ms}), ErrorKind::unavailable);
  EXPECT_EQ(call({.timeout = 20ms, .connect_within = 1h}), ErrorKind::deadline_exceeded);
}

TEST(Connecting, IsRepeatedUntilThePeerHasStarted) {
  std::string address;
  {
    Agent first({.name = "b", .listen = {"tcp://" + test::own_loopback() + ":0"}});
    address = first.addresses().front();
  }
  Agent agent({.name = "a"});
  const Peer patient = agent.connect(address).with({.wait_for_ready = true});
  auto early = patient.call<&Desk::twice>(21);
  EXPECT_EQ(kind_of([&] { got(agent.connect(address).call<&Desk::twice>(1)); }), ErrorKind::unavailable);
  EXPECT_FALSE(early.ready());
  const Agent second({.name = "b", .listen = {address}},
                     {[](Agent& agent) { agent.serve(std::make_shared<Desk>()); }});
  EXPECT_EQ(got(std::move(early)), 42);
}

// The route of an address is also the route of the name of the agent that has answered there. The addresses
// of the name change when the agent restarts elsewhere.
TEST(Connecting, ToAnEarlierAddressKeepsTheAddressesOfTheName) {
  const auto start = [] {
    return std::make_unique<Agent>(
        AgentOptions{.name = "b", .listen = {"tcp://127.0.0.1:0"}},
        std::vector<Layer>{[](Agent& agent) { agent.serve(std::make_shared<Desk>()); }});
  };
  Agent agent({.name = "a"});
  auto first = start();
  const std::string earlier = first->addresses().front();
  EXPECT_EQ(got(agent.connect(earlier).call<&Desk::twice>(1)), 2);
  const auto second = start();  // while the first listens, so that it gets another port
  first.reset();
  eventually("it is gone", [&] { return agent.core()->sessions().latest("b") == nullptr; });
  agent.core()->routes().to_name("b", second->addresses());  // as the membership in a job does
  (void)agent.connect(earlier);
  EXPECT_EQ(got(agent.peer("b").call<&Desk::twice>(21)), 42);
}

TEST(Connecting, ToAKnownAddressPostsNoJob) {
  asio::io_context context;
  Agent agent(context, {.name = "a"});
  (void)agent.connect("tcp://127.0.0.1:9");
  context.poll();
  context.restart();
  (void)agent.connect("tcp://127.0.0.1:9");
  EXPECT_EQ(context.poll(), 0U);
}

// --- In virtual time ---

// Notes each connect.
class Noting final : public Transport {
 public:
  explicit Noting(SimProcess& process) : process_(process), transport_(process) {}
  std::string_view scheme() const override { return transport_.scheme(); }
  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    at.push_back(process_.world().now());
    transport_.connect(address, std::move(loop), options, std::move(done));
  }
  void shut_down() override { transport_.shut_down(); }
  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool allow_remote, Accepted accepted) override {
    return transport_.listen(address, std::move(pick), options, allow_remote, std::move(accepted));
  }
  std::vector<Clock::time_point> at;

 private:
  SimProcess& process_;
  test::SimTransport transport_;
};

class RouteTest : public testing::Test {
 protected:
  RouteTest() { anna = &start("anna"); }
  Agent& start(const std::string& name, AgentOptions options = {}, Heartbeat heartbeat = {0s, 0s}) {
    options.heartbeat = heartbeat;
    SimProcess& process = world.start(name);
    Runtime runtime = test::sim_runtime(process);
    connects[name] = std::make_shared<Noting>(process);
    runtime.transports = {connects[name]};
    Agent& agent = test::start_agent(process, std::move(runtime), std::move(options));
    agent.serve(std::make_shared<Desk>());
    return agent;
  }
  std::vector<std::chrono::nanoseconds> waits(const std::string& name) {
    std::vector<std::chrono::nanoseconds> between;
    const auto& at = connects[name]->at;
    for (std::size_t i = 1; i < at.size(); ++i) between.push_back(at[i] - at[i - 1]);
    return between;
  }
  template <class T>
  std::optional<ErrorKind> failure(Future<T> call) {
    return kind_of([&] { world.got(std::move(call)); });
  }

  SimWorld world{1, {.pace = {.stalls = 0}}};
  std::map<std::string, std::shared_ptr<Noting>> connects;
  Agent* anna = nullptr;
};

TEST_F(RouteTest, WaitsLongerAfterEachFailedAttempt) {
  const Backoff backoff = AgentOptions{}.connect_backoff;
  Agent& carl = start("carl");
  for (Agent* agent : {anna, &carl})
    agent->connect("sim://bert").with({.wait_for_ready = true}).call<&Desk::twice>(1).then([](auto&&) {});
  world.run_for(2min);
  const auto measured = waits("anna");
  ASSERT_GT(measured.size(), 20U);
  const auto slack = 2ms;  // of a connect's round trip
  double due = static_cast<double>(backoff.first.count());
  for (const auto wait : measured) {
    const std::chrono::nanoseconds whole(static_cast<std::int64_t>(due));
    EXPECT_GE(wait, whole / 2);
    EXPECT_LE(wait, whole + slack);
    due = std::min(due * backoff.growth, static_cast<double>(backoff.max.count()));
  }
  EXPECT_NE(measured.back(), measured[measured.size() - 2]) << "jitter";
  EXPECT_NE(measured, waits("carl")) << "agents that fail together do not return together";
}

TEST_F(RouteTest, ResetsTheBackoffAfterAHandshake) {
  const Peer bert = anna->connect("sim://bert").with({.wait_for_ready = true});
  auto first = bert.call<&Desk::twice>(1);
  world.run_for(2min);
  start("bert");
  EXPECT_EQ(world.got(std::move(first)), 2);
  world.crash(*world.find("bert"), test::SimCrash::process);
  world.run_for(1s);
  connects["anna"]->at.clear();
  auto second = bert.call<&Desk::twice>(2);
  world.run_for(100ms);
  EXPECT_GE(connects["anna"]->at.size(), 3U);
  start("bert");
  EXPECT_EQ(world.got(std::move(second)), 4);
}

TEST_F(RouteTest, FailsCallsAtOnceWhileTheNextAttemptIsNotDue) {
  const Peer bert = anna->connect("sim://bert");
  auto patient = bert.with({.wait_for_ready = true}).call<&Desk::twice>(1);
  world.run_for(2min);
  std::size_t attempts = connects["anna"]->at.size();
  expect_error([&] { world.got(bert.call<&Desk::twice>(1)); }, ErrorKind::unavailable, Execution::not_sent,
               "the next attempt to connect is due in");
  EXPECT_EQ(connects["anna"]->at.size(), attempts);
  EXPECT_EQ(bert.calls().route()->reach(), Route::Reach::failing);
  start("bert");
  EXPECT_EQ(world.got(std::move(patient)), 2);
  EXPECT_EQ(bert.calls().route()->reach(), Route::Reach::connected);
  EXPECT_EQ(world.got(bert.call<&Desk::twice>(3)), 6);
}

TEST_F(RouteTest, KeepsACallThatWaitsForReadinessUntilItsDeadline) {
  const auto begin = world.now();
  const Peer bert = anna->connect("sim://bert").with({.timeout = 1min, .wait_for_ready = true});
  EXPECT_EQ(failure(bert.call<&Desk::twice>(1)), ErrorKind::deadline_exceeded);
  EXPECT_GE(world.now() - begin, 1min);
  EXPECT_LT(world.now() - begin, 1min + 1s);
  EXPECT_TRUE(world.run_until_idle()) << "nobody waits, so nobody connects again";
}

TEST_F(RouteTest, FailsCallsThatCanNeverSucceedAtOnce) {
  const Peer nowhere = anna->connect("tcp://127.0.0.1:1").with({.wait_for_ready = true});
  EXPECT_EQ(failure(nowhere.call<&Desk::twice>(1)), ErrorKind::unsupported) << "no such transport here";
}

TEST_F(RouteTest, AConnectionFromThePeerCompletesTheWait) {
  auto call = anna->peer("bert").with({.wait_for_ready = true}).call<&Desk::twice>(1);  // address unknown
  world.run_for(2min);
  EXPECT_EQ(failure(anna->peer("bert").call<&Desk::twice>(1)), ErrorKind::not_found);
  Agent& bert = start("bert");
  const auto begin = world.now();
  world.got(bert.connect("sim://anna").ready());
  EXPECT_EQ(world.got(std::move(call)), 2);
  EXPECT_LT(world.now() - begin, 100ms);
}

TEST_F(RouteTest, ConnectsWithoutACall) {
  const Peer bert = anna->connect("sim://bert");
  EXPECT_EQ(bert.calls().route()->reach(), Route::Reach::idle);
  bert.calls().route()->connect();
  world.run_for(1s);
  EXPECT_EQ(connects["anna"]->at.size(), 1U) << "once, though it failed";
  start("bert");
  bert.calls().route()->connect();
  world.run_for(1s);
  EXPECT_EQ(bert.calls().route()->reach(), Route::Reach::connected);
}

TEST_F(RouteTest, ConnectsNoMoreOnceThePeerHasReturned) {
  Agent& carl = start("carl", {}, {.interval = 0s, .timeout = 10min});
  start("bert", {}, {.interval = 0s, .timeout = 10min});
  const Peer peer = carl.connect("sim://bert");
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(1)), 2);
  test::lose_connections(carl);
  EXPECT_TRUE(world.run_until([&] { return peer.calls().route()->reach() != Route::Reach::connected; }, 1s));
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(2)), 4);
  world.run_for(1s);
  connects["carl"]->at.clear();
  peer.calls().route()->connect();
  world.run_for(1s);
  EXPECT_TRUE(connects["carl"]->at.empty());
}

// The backoff after attempts that no call has caused.
TEST_F(RouteTest, TheFirstCallAfterAnAbsenceConnectsAtOnce) {
  Agent& carl = start("carl", {}, {.interval = 0s, .timeout = 10min});
  Agent& bert = start("bert");
  const Peer peer = carl.connect("sim://bert");
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(1)), 2);
  const AgentId before = bert.id();
  world.crash(*world.find("bert"), test::SimCrash::process);
  EXPECT_TRUE(world.run_until([&] { return carl.core()->sessions().is_gone(before); }, 1s));
  start("bert");
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(2)), 4);
}

TEST_F(RouteTest, APartitionEndsAnAttemptAfterTheConnectTimeout) {
  const std::pair<Agent&, Clock::duration> limits[] = {{start("carl", {.connect_timeout = 3s}), 3s},
                                                       {start("dora"), 10s}};
  start("bert");
  for (const auto& [agent, limit] : limits) {
    world.network().partition({agent.name()}, {"bert"});
    const auto begin = world.now();
    EXPECT_EQ(failure(agent.connect("sim://bert").call<&Desk::twice>(1)), ErrorKind::unavailable);
    EXPECT_GE(world.now() - begin, limit);
    EXPECT_LT(world.now() - begin, limit + 100ms);
    EXPECT_TRUE(world.run_until_idle());
  }
}

TEST_F(RouteTest, CallsToAGoneIncarnationFailAtOnce) {
  Agent &carl = start("carl", {}, {.interval = 0s, .timeout = 10min}), &bert = start("bert");
  const Peer peer = carl.connect("sim://bert").only(bert.id());
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(1)), 2);
  world.network().partition({"carl"}, {"bert"});
  test::lose_connections(carl);
  world.run_for(1s);
  auto waits = peer.with({.wait_for_ready = true}).call<&Desk::twice>(2);
  world.run_for(1s);
  EXPECT_FALSE(waits.ready());
  carl.core()->lose(bert.id(), Error(ErrorKind::peer_lost, "the test knows it"));
  const auto begin = world.now();
  EXPECT_EQ(failure(std::move(waits)), ErrorKind::peer_lost);
  EXPECT_EQ(failure(peer.call<&Desk::twice>(3)), ErrorKind::peer_lost);
  EXPECT_EQ(failure(peer.with({.wait_for_ready = true}).call<&Desk::twice>(4)), ErrorKind::peer_lost);
  EXPECT_LT(world.now() - begin, 100ms);
}

TEST_F(RouteTest, AnAgentThatShutsDownDoesNotWaitForAPeerThatItCannotReach) {
  Agent &carl = start("carl", {.connect_timeout = 100ms}), &bert = start("bert");
  world.network().partition({"carl"}, {"bert"});
  auto call = carl.connect("sim://bert").only(bert.id()).call<&Desk::twice>(1);
  world.run_for(1s);
  EXPECT_FALSE(call.ready());
  const auto begin = world.now();
  world.got(carl.drain(1h));
  EXPECT_LT(world.now() - begin, 2s);
  EXPECT_EQ(failure(std::move(call)), ErrorKind::unavailable);
}

// The cost of ending waiting calls, in processor time of this thread.
TEST_F(RouteTest, FailsManyWaitingCallsInLinearTime) {
  const auto cost = [&](int calls) {
    const CancelScope scope;
    const Peer bert = anna->connect("sim://bert").with({.wait_for_ready = true}).with(scope);
    std::vector<Future<int>> waiting;
    for (int i = 0; i < calls; ++i) waiting.push_back(bert.call<&Desk::twice>(i));
    world.run_for(1s);
    const auto spent = test::processor_time_of([&] {
      CancelScope(scope).cancel();
      world.run_for(1s);
    });
    for (auto& call : waiting) EXPECT_TRUE(call.ready());
    return spent;
  };
  // Fewer calls fit into the caches, and take too little time to be measured.
  const auto few = cost(4000), many = cost(40'000);
  EXPECT_LT(many, 40 * few) << "10 times as many; 100 if the cost were quadratic";
}

}  // namespace
}  // namespace weft::rpc::route_test
