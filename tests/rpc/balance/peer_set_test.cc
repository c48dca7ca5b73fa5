#include <weft/rpc/balance/peer_set.h>

#include <weft/rpc/testing/simulation/sim_agent.h>

#include "tests/support/cluster.h"

namespace weft::rpc::peer_set_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

// A base class without a service.
struct Twice {
  std::int64_t twice(std::int64_t n) const { return 2 * n; }
};

class Replica : public Twice {
 public:
  explicit Replica(std::string name) : name_(std::move(name)) {}
  std::string who() const { return name_; }
  std::string greet(std::string greeting, std::int64_t n) const {
    return greeting + std::to_string(n) + name_;
  }
  std::string fail() const { throw std::runtime_error("not today"); }
  Task<std::int64_t> sum(Stream<std::int64_t> numbers) {
    std::int64_t total = 0;
    while (auto number = co_await numbers.next()) total += *number;
    co_return total;
  }
  Future<std::string> hang() { return hung(); }
  Future<std::string> hang_safely() { return hung(); }
  void release() {
    std::lock_guard lock(mutex_);
    promises_.clear();
  }
  std::size_t hanging() {
    std::lock_guard lock(mutex_);
    return promises_.size();
  }

  using Service = rpc::Service<"replica", Method<"who", &Replica::who>, Method<"greet", &Replica::greet>,
                               Method<"twice", &Replica::twice>, Method<"fail", &Replica::fail>,
                               Method<"sum", &Replica::sum>, Method<"hang", &Replica::hang>,
                               Method<"hang_safely", &Replica::hang_safely, idempotent>>;

 private:
  Future<std::string> hung() {
    std::lock_guard lock(mutex_);
    promises_.emplace_back();
    return promises_.back().future();
  }
  const std::string name_;
  std::mutex mutex_;  // guards promises_
  std::vector<Promise<std::string>> promises_;
};

class PeerSetTest : public testing::Test {
 protected:
  PeerSetTest() : cluster({}) {
    cluster.add("client");
    for (const char* name : {"a", "b", "c"}) start(name);
  }
  ~PeerSetTest() override {
    for (const auto& [name, replica] : replicas) replica->release();
    cluster.end_all();
  }
  void start(const std::string& name) {
    replicas[name] = std::make_shared<Replica>(name);
    // The replica is served before its agent listens, because calls may wait for that agent.
    cluster.add(name, {[replica = replicas[name]](Agent& agent) { agent.serve(replica); }});
  }
  PeerSet all(PeerSetOptions options = {}) {
    return PeerSet(cluster["client"], {"inproc://a", "inproc://b", "inproc://c"}, options);
  }
  std::size_t hanging() {
    std::size_t count = 0;
    for (const auto& [name, replica] : replicas) count += replica->hanging();
    return count;
  }
  std::string where_it_hangs() {
    for (const auto& [name, replica] : replicas)
      if (replica->hanging() != 0) return name;
    return "nowhere";
  }

  Cluster cluster;
  std::map<std::string, std::shared_ptr<Replica>> replicas;
};

TEST_F(PeerSetTest, RoundRobinCallsEachReplicaEquallyOften) {
  const auto set = all();
  std::map<std::string, int> count;
  for (int i = 0; i < 9; ++i) ++count[got(set.call<&Replica::who>())];
  EXPECT_EQ(count, (std::map<std::string, int>{{"a", 3}, {"b", 3}, {"c", 3}}));
}

TEST_F(PeerSetTest, CallsInheritedMethods) {
  EXPECT_EQ(got(all().call<Replica, &Replica::twice>(std::int64_t{4})), 8);
}

TEST_F(PeerSetTest, CallsWithAKeyUseOneReplica) {
  const auto set = all({.policy = BalancePolicy::consistent_hash});
  const auto mine = set.key("ACME");
  const std::string first = got(mine.call<&Replica::who>());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(got(mine.call<&Replica::who>()), first);
}

TEST_F(PeerSetTest, AnUnsentCallIsRetriedOnAnotherReplica) {
  cluster.end("b");
  const auto set = all({.ejection = {.failures = 1, .first = 1h}});
  const std::string greeting = "hello ";
  for (int i = 0; i < 9; ++i) EXPECT_NE(got(set.call<&Replica::greet>(greeting, i)).back(), 'b');
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got(set.call<&Replica::greet>("hi ", 5)).substr(0, 4), "hi 5");
  for (const auto& replica : set.replicas())
    EXPECT_EQ(replica.ejected_until.has_value(), replica.name == "inproc://b");
}

TEST_F(PeerSetTest, WithoutAnyReplicaTheLastErrorIsReturned) {
  for (const char* name : {"a", "b", "c"}) cluster.end(name);
  expect_error([&] { got(all().call<&Replica::who>()); }, ErrorKind::unavailable, Execution::not_sent);
  EXPECT_EQ(kind_of([&] { got(PeerSet(cluster["client"], PeerSet::Names{}).call<&Replica::who>()); }),
            ErrorKind::unavailable);
}

TEST_F(PeerSetTest, ACallThatWaitsForReadinessWaitsForAnyReplica) {
  for (const char* name : {"a", "b", "c"}) cluster.end(name);
  const auto set = all().with({.wait_for_ready = true});
  auto call = set.call<&Replica::who>();
  auto cancelled = set.call<&Replica::who>();
  EXPECT_EQ(
      kind_of([&] { got(all().with({.timeout = 50ms, .wait_for_ready = true}).call<&Replica::who>()); }),
      ErrorKind::deadline_exceeded);
  EXPECT_FALSE(call.ready());
  cancelled.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(cancelled)); }), ErrorKind::cancelled);
  start("b");
  EXPECT_EQ(got(std::move(call)), "b");
}

TEST_F(PeerSetTest, ACallThatWaitsForReadinessEndsWithItsAgent) {
  for (const char* name : {"a", "b", "c"}) cluster.end(name);
  for (const bool destroyed : {false, true}) {
    auto ended = std::make_shared<Event>();
    auto call =
        std::make_shared<Future<std::string>>(all().with({.wait_for_ready = true}).call<&Replica::who>());
    auto agent = std::make_shared<std::unique_ptr<Agent>>(std::make_unique<Agent>(AgentOptions{.name = "d"}));
    auto there =
        std::make_shared<Future<std::string>>(PeerSet(**agent, {"tcp://127.0.0.1:9", "tcp://127.0.0.1:10"})
                                                  .with({.wait_for_ready = true})
                                                  .call<&Replica::who>());
    // On a thread of its own, because a failure would block it forever.
    std::thread([=] {
      destroyed ? agent->reset() : (*agent)->shut_down();
      ended->set();
    }).detach();
    eventually("it ends", [&] { return ended->is_set(); });
    ASSERT_TRUE(ended->is_set()) << destroyed;
    EXPECT_EQ(kind_of([&] { got(std::move(*there)); }), ErrorKind::shut_down);
    EXPECT_FALSE(call->ready()) << "that of another agent waits";
    call->cancel();
  }
}

TEST_F(PeerSetTest, ACallThatMayHaveRunIsRetriedOnlyIfItsMethodIsIdempotent) {
  const auto set = all();
  auto call = set.call<&Replica::hang>();
  eventually("it hangs", [&] { return hanging() == 1; });
  std::string there = where_it_hangs();
  cluster.end(there);
  replicas[there]->release();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost);

  auto safe = set.call<&Replica::hang_safely>();
  eventually("it hangs", [&] { return hanging() == 1; });
  there = where_it_hangs();
  cluster.end(there);
  replicas[there]->release();
  eventually("it hangs elsewhere", [&] { return hanging() == 1; });
  EXPECT_FALSE(safe.ready());
  safe.cancel();  // the latest attempt
  EXPECT_EQ(kind_of([&] { got(std::move(safe)); }), ErrorKind::cancelled);
}

TEST_F(PeerSetTest, AnErrorOfAHandlerDoesNotEjectTheReplica) {
  const auto set = all({.ejection = {.failures = 1}});
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(kind_of([&] { got(set.call<&Replica::fail>()); }), ErrorKind::handler_failed);
  for (const auto& replica : set.replicas()) {
    EXPECT_FALSE(replica.ejected_until);
    EXPECT_EQ(replica.outstanding, 0U);
  }
}

TEST_F(PeerSetTest, CancelReachesTheReplicasCall) {
  const auto set = all();
  auto call = set.call<&Replica::hang_safely>();
  eventually("it hangs", [&] { return hanging() == 1; });
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  EXPECT_EQ(hanging(), 1U) << "nobody else was asked";
}

TEST_F(PeerSetTest, TheDeadlineAppliesToAllAttempts) {
  const auto set = all().with({.timeout = 50ms});
  EXPECT_EQ(kind_of([&] { got(set.call<&Replica::hang_safely>()); }), ErrorKind::deadline_exceeded);
  EXPECT_LE(hanging(), 1U);
}

TEST_F(PeerSetTest, AResolverProvidesTheReplicas) {
  auto names = std::make_shared<Handover<Promise<PeerSet::Names>>>();
  const PeerSet set(cluster["client"], [names] {
    Promise<PeerSet::Names> promise;
    auto future = promise.future();
    names->give(std::move(promise));
    return future;
  });
  auto early = set.call<&Replica::who>();
  EXPECT_FALSE(early.ready()) << "it waits for the first names";
  EXPECT_EQ(kind_of([&] { got(set.with({.timeout = 1ms}).call<&Replica::who>()); }),
            ErrorKind::deadline_exceeded);
  auto cancelled = set.call<&Replica::who>();
  cancelled.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(cancelled)); }), ErrorKind::cancelled);
  names->take().complete(PeerSet::Names{"inproc://c"});
  EXPECT_EQ(got(std::move(early)), "c");
}

TEST_F(PeerSetTest, AResolverIsCalledAgainAfterAFailure) {
  std::atomic<int> asked{0};
  const PeerSet set(cluster["client"],
                    [&asked] {
                      const bool first = asked++ == 0;
                      return Future<PeerSet::Names>::made(first ? PeerSet::Names{"inproc://a", "inproc://b"}
                                                                : PeerSet::Names{"inproc://c"});
                    },
                    {.refresh = 1h, .soonest = 0ns});
  EXPECT_NE(got(set.call<&Replica::who>()), "c");
  cluster.end("a");
  eventually("it knows the new names", [&] { return got(set.call<&Replica::who>()) == "c"; });
  EXPECT_GE(asked, 2);
}

TEST_F(PeerSetTest, AResolverIsCalledPeriodically) {
  auto asked = std::make_shared<std::atomic<int>>(0);
  const PeerSet set(cluster["client"],
                    [asked] {
                      ++*asked;
                      return Future<PeerSet::Names>::made(PeerSet::Names{"inproc://a"});
                    },
                    {.refresh = 1ms});
  eventually("it was asked", [&] { return *asked >= 3; });
}

// Three replicas, of which one does not answer connections; 64 calls in flight at any time. In virtual time:
// the duration of a connect does not depend on the machine.
TEST(PeerSetWithABlackHole, CallsOnlyTheReplicasThatAnswer) {
  test::SimWorld world(1);
  Agent& client = test::start_agent(world.start("client"), {.heartbeat = {0s, 0s}});
  PeerSet::Names names;
  for (const char* name : {"hole", "a", "b"}) {
    Agent& agent = test::start_agent(world.start(name), {.heartbeat = {0s, 0s}});
    agent.serve(std::make_shared<Replica>(name));
    names.push_back(agent.addresses().front());
  }
  world.network().partition({"client"}, {"hole"});
  const auto set = PeerSet(client, names, {.connect_within = 200ms}).with({.timeout = 2s});
  std::map<std::string, int> count;
  std::vector<Future<std::string>> calls;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 64; ++i) calls.push_back(set.call<&Replica::who>());
    for (auto& call : std::exchange(calls, {})) ++count[world.got(std::move(call))];
  }
  EXPECT_EQ(count["a"] + count["b"], 640);
  EXPECT_GT(count["a"], 200);
  EXPECT_GT(count["b"], 200);
  for (const auto& replica : set.replicas()) EXPECT_EQ(replica.outstanding, 0U) << replica.name;
}

TEST_F(PeerSetTest, CallsWithStreamsHaveOneAttempt) {
  const auto set = all();
  auto [writer, stream] = make_channel<std::int64_t>(1);
  auto sum = set.call<&Replica::sum>(std::move(stream));
  for (std::int64_t i = 1; i <= 3; ++i) got(writer.write(i));
  writer.close();
  EXPECT_EQ(got(std::move(sum)), 6);
  cluster.end("b");
  auto [other_writer, other] = make_channel<std::int64_t>(1);
  for (const char* name : {"a", "b", "c"}) cluster.end(name);
  EXPECT_EQ(kind_of([&, &s = other] { got(set.call<&Replica::sum>(std::move(s))); }), ErrorKind::unavailable);
  EXPECT_FALSE(other_writer.wanted());
}

}  // namespace
}  // namespace weft::rpc::peer_set_test
