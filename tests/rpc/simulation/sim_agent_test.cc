// Agents run in a simulated world as they do in a real one.
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/rpc.h>

#include <set>

#include "tests/support/errors.h"
#include "tests/support/sanitizer.h"

namespace weft::test::sim_agent_test {
namespace {

using namespace std::chrono_literals;
using rpc::ErrorKind;

// Waits in virtual time.
rpc::Future<void> pause(const std::shared_ptr<rpc::Loop>& loop, std::chrono::nanoseconds span) {
  auto promise = std::make_shared<rpc::Promise<void>>(loop);
  auto future = promise->future();
  loop->post([loop, promise, span] {
    loop->schedule(rpc::later(loop->now(), span), [promise] { promise->complete(rpc::Result<void>{}); });
  });
  return future;
}

class Desk {
 public:
  explicit Desk(rpc::Agent& agent) : core_(agent.core()) {}

  int twice(int n) const { return 2 * n; }
  rpc::Task<int> slow(int n) {
    co_await pause(core_.lock()->pick_loop(), 1h);
    co_return n;
  }
  // Registers for its cancellation, for which the agent sets a timer at the deadline.
  rpc::Task<int> heedful(rpc::CallContext& context, int n) {
    context.on_cancel([] {});
    co_await pause(core_.lock()->pick_loop(), 1h);
    co_return n;
  }
  rpc::Task<std::uint64_t> keep(rpc::Buffer bytes) {
    co_await pause(core_.lock()->pick_loop(), 1h);
    co_return bytes.size();
  }
  // Runs until the call is cancelled.
  rpc::Future<void> stuck(rpc::CallContext& context) {
    auto promise = std::make_shared<rpc::Promise<void>>();
    auto future = promise->future();
    context.on_cancel([promise] { promise->complete(rpc::Result<void>{}); });
    return future;
  }
  rpc::Task<int> by_way_of(rpc::CallContext& context, std::string name, int n) {
    const auto core = core_.lock();
    const rpc::Peer peer(core, core->routes().to_address("sim://" + name));
    co_return co_await peer.with(context).call<&Desk::twice>(n);
  }

  using Service = rpc::Service<"desk", rpc::Method<"twice", &Desk::twice, rpc::non_blocking>,
                               rpc::Method<"slow", &Desk::slow>, rpc::Method<"heedful", &Desk::heedful>,
                               rpc::Method<"keep", &Desk::keep>, rpc::Method<"stuck", &Desk::stuck>,
                               rpc::Method<"by_way_of", &Desk::by_way_of>>;

 private:
  std::weak_ptr<rpc::AgentCore> core_;
};

// Heartbeats are off unless a test needs them, so that a world becomes idle.
rpc::Agent& start(SimWorld& world, const std::string& name,
                  rpc::AgentOptions options = {.heartbeat = {0s, 0s}}) {
  rpc::Agent& agent = start_agent(world.start(name), std::move(options));
  agent.serve(std::make_shared<Desk>(agent));
  return agent;
}

TEST(SimAgent, CallsInVirtualTime) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  start(world, "bert", {.loops = 2, .heartbeat = {0s, 0s}});
  start(world, "carl");
  const rpc::Peer bert = anna.connect("sim://bert");
  const auto begin = world.now();
  EXPECT_EQ(world.got(bert.call<&Desk::twice>(21)), 42);
  EXPECT_EQ(world.got(bert.call<&Desk::by_way_of>("carl", 4)), 8);
  EXPECT_EQ(world.got(anna.peer("anna").call<&Desk::twice>(3)), 6);
  EXPECT_LT(world.now() - begin, 10s);
  EXPECT_EQ(world.got(bert.call<&Desk::slow>(5), 2h), 5);
  EXPECT_GE(world.now() - begin, 1h);
  EXPECT_EQ(bert.identity()->name, "bert");
  EXPECT_TRUE(world.run_until_idle());
}

TEST(SimAgent, ADeadlineExpiresExactlyInVirtualTime) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  start(world, "bert");
  const rpc::Peer bert = anna.connect("sim://bert").with({.timeout = 10min});
  const auto begin = world.now();
  EXPECT_EQ(kind_of([&] { return world.got(bert.call<&Desk::slow>(5)); }), ErrorKind::deadline_exceeded);
  EXPECT_GE(world.now() - begin, 10min);
  EXPECT_LT(world.now() - begin, 10min + 1s);
}

// The caller's cancellation does not arrive, and the loss of its connection is not detected, because nothing
// is sent over it.
TEST(SimAgent, AHandlerIsNotifiedOfItsDeadlineIfItsCallerIsSilent) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  rpc::Agent& bert = start(world, "bert");
  auto stuck = anna.connect("sim://bert").with({.timeout = 10min}).call<&Desk::stuck>();
  world.run_for(1min);
  EXPECT_EQ(bert.counts().serving, 1U);
  world.network().blackhole("anna", "bert");
  world.crash(*world.find("anna"), SimCrash::process);
  world.run_for(8min);
  EXPECT_EQ(bert.counts().serving, 1U);
  world.run_for(2min);
  EXPECT_EQ(bert.counts().serving + bert.counts().serving_bytes, 0U);
}

// Checks both sides: the caller's timer, and the timer that notifies the callee's handler of the deadline.
void expect_no_timer_left(SimWorld& world, rpc::Agent& anna, rpc::Agent& bert, const rpc::Peer& peer) {
  const auto timers = [](rpc::Agent& agent) {
    std::size_t all = 0;
    for (const auto& loop : agent.core()->loops()) all += dynamic_cast<SimLoop&>(*loop).timers();
    return all;
  };
  world.run_for(1s);
  const std::size_t of_anna = timers(anna), of_bert = timers(bert);
  auto slow = peer.call<&Desk::heedful>(7);
  world.run_for(1s);
  EXPECT_EQ(timers(anna), of_anna + 1) << "of the caller's deadline";
  EXPECT_EQ(timers(bert), of_bert + 2) << "of the callee's, and the handler's own";
  EXPECT_EQ(world.got(std::move(slow), 2h), 7);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(world.got(peer.call<&Desk::twice>(i)), 2 * i);
  world.run_for(1s);
  EXPECT_EQ(timers(anna), of_anna);
  EXPECT_EQ(timers(bert), of_bert);
}

TEST(SimAgent, NoTimerIsLeftAfterAnsweredCalls) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  rpc::Agent& bert = start(world, "bert");
  const rpc::Peer peer = anna.connect("sim://bert").with({.timeout = 5h});
  world.got(peer.ready());
  expect_no_timer_left(world, anna, bert, peer);
}

// The timer of a call is on the loop of its route. The reply arrives on the loop of the link. They differ if
// the peer opened the connection.
TEST(SimAgent, NoTimerIsLeftAfterCallsThatAreAnsweredOnAnotherLoop) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna", {.loops = 2, .heartbeat = {0s, 0s}});
  int on_two_loops = 0;
  bool skip = false;  // every second time, since the agent uses its loops round-robin
  for (const char* name : {"bert", "carl", "dora", "emil"}) {
    rpc::Agent& callee = start(world, name);
    const rpc::Peer peer = anna.peer(name).with({.timeout = 5h});
    if (std::exchange(skip, !skip)) anna.core()->pick_loop();
    world.got(callee.connect("sim://anna").ready());
    world.run_for(1s);
    const auto session = anna.core()->sessions().find(callee.id());
    ASSERT_NE(session, nullptr);
    if (session->is_at(*peer.calls().route()->loop())) continue;
    ++on_two_loops;
    expect_no_timer_left(world, anna, callee, peer);
  }
  EXPECT_GT(on_two_loops, 0);
}

// The request blocks its connection for one second, so that later frames, which may free memory, are read.
TEST(SimAgent, RefusesALargeRequestThatFindsNoRoomInTime) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  rpc::AgentOptions options{.heartbeat = {0s, 0s}};
  options.limits.in_flight_total = 1'000'000;
  rpc::Agent& bert = start(world, "bert", std::move(options));
  const rpc::Peer peer = anna.connect("sim://bert");
  auto first = peer.call<&Desk::keep>(rpc::Buffer::allocate(900'000));
  auto second = peer.call<&Desk::keep>(rpc::Buffer::allocate(600'000));
  const auto begin = world.now();
  EXPECT_EQ(world.got(peer.call<&Desk::twice>(4)), 8);
  EXPECT_GE(world.now() - begin, 1s);
  EXPECT_LT(world.now() - begin, 10s);
  expect_error([&] { world.got(std::move(second)); }, ErrorKind::resource_exhausted, rpc::Execution::not_sent,
               "desk.keep");
  EXPECT_EQ(bert.counts().calls_shed, 1U);
  EXPECT_EQ(world.got(std::move(first), 2h), 900'000U);
  EXPECT_EQ(bert.counts().serving_bytes, 0U);
}

// Ten lines of a topic are logged within ten seconds, and then a line that counts the rest. The other lines
// have level debug.
TEST(SimAgent, ARepeatedTopicIsLoggedTenTimesInTenSeconds) {
  SimWorld world(1);
  std::vector<std::string> warnings;
  std::size_t lines = 0;
  rpc::AgentOptions options{.heartbeat = {0s, 0s}};
  options.log = [&](const rpc::LogRecord& record) {
    ++lines;
    if (record.level == rpc::LogLevel::warning) warnings.emplace_back(record.message);
  };
  rpc::Agent& anna = start(world, "anna", std::move(options));
  const auto& loop = anna.core()->loops().front();
  const auto log = [&](int times) {
    for (int i = 0; i < times; ++i) anna.core()->log().write_some("calls denied", loop, "denied");
    world.run_for(1s);
  };
  log(10);
  EXPECT_EQ(warnings.size(), 10U);
  log(11);
  EXPECT_EQ(lines, 21U);
  EXPECT_EQ(warnings.size(), 10U);
  world.run_for(9s);
  ASSERT_EQ(warnings.size(), 11U);
  EXPECT_EQ(warnings.back().find("calls denied: 11 more within 10 s"), 0U) << warnings.back();
  log(3);
  EXPECT_EQ(warnings.size(), 14U) << "the next ten seconds";
}

TEST(SimAgent, AnIdleConnectionSleeps) {
  // a spurious wake-up may cause another one, but not forever
  SimWorld world(1, {.weather = {.false_calls = 500}});
  rpc::Agent& anna = start(world, "anna");
  start(world, "bert");
  world.got(anna.connect("sim://bert").ready());
  world.run_for(1min);
  const std::uint64_t steps = world.steps();
  world.run_for(1h);
  EXPECT_EQ(world.steps(), steps);
}

TEST(SimAgent, ACrashIsDetectedAndTheNewIncarnationIsFound) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  const rpc::AgentId first = start(world, "bert").id();
  const rpc::Peer bert = anna.connect("sim://bert");
  auto slow = bert.call<&Desk::slow>(5);
  world.run_for(1min);
  world.crash(*world.find("bert"), SimCrash::process);
  EXPECT_EQ(kind_of([&] { return world.got(std::move(slow)); }), ErrorKind::peer_lost);
  EXPECT_EQ(kind_of([&] { return world.got(bert.call<&Desk::twice>(5)); }), ErrorKind::unavailable);
  const rpc::AgentId second = start(world, "bert").id();
  EXPECT_EQ(world.got(bert.with({.wait_for_ready = true}).call<&Desk::twice>(5)), 10);
  EXPECT_NE(first, second);
  EXPECT_EQ(bert.identity(), second);
}

TEST(SimAgent, IdleAgentsKeepEachOtherByTheirHeartbeats) {
  for (std::uint64_t seed = 1; seed <= test::times(20); ++seed) {
    SimWorld world(seed, {.weather = SimWeather{}});
    const rpc::Heartbeat heartbeat{.interval = 1s, .timeout = 5s};
    rpc::Agent& anna = start(world, "anna", {.heartbeat = heartbeat});
    rpc::Agent& bert = start(world, "bert", {.heartbeat = heartbeat});
    const rpc::Peer to_bert = anna.connect("sim://bert");
    world.got(to_bert.ready());
    auto slow = to_bert.call<&Desk::slow>(5);
    world.run_for(2h);
    EXPECT_EQ(anna.counts().connections_made, 1U);
    EXPECT_EQ(bert.counts().connections, 1U);
    EXPECT_EQ(world.got(std::move(slow)), 5) << "a handler that takes long is not a peer that is gone";
  }
}

TEST(SimAgent, AVanishedHostIsDetectedByItsSilence) {
  SimWorld world(1);
  const rpc::Heartbeat heartbeat{.interval = 1s, .timeout = 5s};
  rpc::Agent& anna = start(world, "anna", {.heartbeat = heartbeat});
  start(world, "bert", {.heartbeat = heartbeat});
  start(world, "carl");
  const rpc::Peer bert = anna.connect("sim://bert"), carl = anna.connect("sim://carl");
  EXPECT_EQ(world.got(carl.call<&Desk::twice>(1)), 2);
  auto slow = bert.call<&Desk::slow>(5);
  world.run_for(1min);
  const auto begin = world.now();
  world.crash(*world.find("bert"), SimCrash::host);
  EXPECT_EQ(kind_of([&] { return world.got(std::move(slow)); }), ErrorKind::peer_lost);
  EXPECT_GE(world.now() - begin, 4s);
  EXPECT_LE(world.now() - begin, 6s + 100ms) << "timeout, and one interval";
  EXPECT_EQ(anna.counts().peers_silent, 1U);
  EXPECT_EQ(world.got(carl.call<&Desk::twice>(1)), 2)
      << "a peer that sends no heartbeats itself replies to them";
  EXPECT_EQ(anna.counts().connections, 1U);
}

TEST(SimAgent, ShutsDownWithoutAThreadToWaitFor) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  start(world, "bert");
  const rpc::Peer bert = anna.connect("sim://bert");
  auto slow = bert.call<&Desk::slow>(5);
  world.run_for(1min);
  SimProcess& process = *world.find("bert");
  process.destroy_kept();
  EXPECT_EQ(kind_of([&] { return world.got(std::move(slow)); }), ErrorKind::peer_lost)
      << "it said no goodbye";
  EXPECT_TRUE(world.run_until_idle());
  EXPECT_EQ(world.network().open_streams(process), 0U);
  EXPECT_EQ(kind_of([&] { return world.got(bert.call<&Desk::twice>(5)); }), ErrorKind::unavailable);
}

TEST(SimAgent, ASeedIsOneRun) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (int time = 1; time <= 2; ++time) {
      SimWorld world(seed);
      world.network().weather() = SimWeather::draw(world.random());
      rpc::Agent& anna = start(world, "anna", {.loops = 2, .heartbeat = {0s, 0s}});
      start(world, "bert");
      start(world, "carl");
      for (int i = 0; i < 5; ++i)
        for (const char* to : {"sim://bert", "sim://carl"}) {
          anna.connect(to).call<&Desk::by_way_of>("anna", 4).then([](auto&&) {});
          world.run_for(world.random().up_to(1ms));
        }
      world.network().reset_any();
      world.run_for(2h);
      hashes.insert(world.trace().hash());
    }
    EXPECT_EQ(hashes.size(), seed);  // one more
  }
}

TEST(SimAgent, ReadyReturnsThePresentIncarnation) {
  SimWorld world(1);
  rpc::Agent& anna = start(world, "anna");
  const rpc::AgentId first = start(world, "bert").id();
  const rpc::Peer bert = anna.connect("sim://bert");
  EXPECT_EQ(world.got(bert.ready()), first);
  world.crash(*world.find("bert"), SimCrash::process);
  world.run_until_idle();
  const rpc::AgentId second = start(world, "bert").id();
  EXPECT_EQ(world.got(bert.ready()), second) << "though it was connected before";
}

}  // namespace
}  // namespace weft::test::sim_agent_test
