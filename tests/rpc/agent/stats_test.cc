#include <weft/rpc/agent/stats.h>
#include <weft/rpc/codec/packed.h>

#include "tests/support/cluster.h"

namespace weft::rpc::stats_test {
namespace {

using namespace test;

struct Worker {
  std::uint64_t size(Buffer bytes) { return bytes.size(); }
  void fail() { throw std::runtime_error("no"); }
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"worker", Method<"size", &Worker::size>, Method<"fail", &Worker::fail>,
                               Method<"block", &Worker::block>>;
  Event began, released;
};

class StatsTest : public testing::Test {
 protected:
  StatsTest() { cluster["b"].serve(worker); }
  AgentStats ask() { return got(stats(cluster.peer("a", "b"))); }
  MethodStats ask(std::string_view method) {
    for (auto& found : ask().methods)
      if (found.name == method) return found;
    ADD_FAILURE() << "no method " << method;
    return {};
  }

  std::shared_ptr<Worker> worker = std::make_shared<Worker>();
  Cluster cluster{{}, {"a", "b"}};
  Peer b = cluster.peer("a", "b");
};

TEST_F(StatsTest, CountTheCallsOfEachMethod) {
  EXPECT_EQ(ask("worker.size").accepted, 0U);
  for (int i = 0; i < 3; ++i) got(b.call<&Worker::size>(Buffer::allocate(10)));
  EXPECT_EQ(kind_of([&] { got(b.call<&Worker::fail>()); }), ErrorKind::handler_failed);
  const MethodStats size = ask("worker.size"), fail = ask("worker.fail");
  EXPECT_EQ(size.accepted, 3U);
  EXPECT_EQ(size.answered, 3U);
  EXPECT_EQ(size.failed, 0U);
  EXPECT_EQ(fail.accepted, 1U);
  EXPECT_EQ(fail.answered, 1U);
  EXPECT_EQ(fail.failed, 1U);
}

TEST_F(StatsTest, CallsWithoutAReplyAreInFlight) {
  auto call = b.call<&Worker::block>();
  worker->began.wait();
  EXPECT_EQ(ask("worker.block").accepted, 1U);
  EXPECT_EQ(ask("worker.block").answered, 0U);
  EXPECT_GE(ask().serving, 2U);  // includes this query
  worker->released.set();
  got(std::move(call));
  EXPECT_EQ(ask("worker.block").answered, 1U);
}

TEST_F(StatsTest, NotificationsAreAnsweredWhenTheyAreDone) {
  b.notify<&Worker::size>(Buffer::allocate(1));
  eventually("it has run", [&] { return ask("worker.size").answered == 1; });
  EXPECT_EQ(ask("worker.size").accepted, 1U);
}

TEST_F(StatsTest, CountBytesOfBothDirectionsAndConnections) {
  const AgentStats before = ask();
  constexpr std::size_t size = 1 << 20;
  got(b.call<&Worker::size>(Buffer::allocate(size)));
  const AgentStats after = ask();
  EXPECT_EQ(after.name, "b");
  EXPECT_EQ(after.incarnation, cluster["b"].id().incarnation);
  EXPECT_GE(after.bytes_received, before.bytes_received + size);
  EXPECT_GT(after.bytes_sent, before.bytes_sent);
  EXPECT_LT(after.bytes_sent, before.bytes_sent + size);
  EXPECT_EQ(after.connections, 1U);
  EXPECT_GE(after.uptime, before.uptime);
  EXPECT_GE(cluster["a"].counts().bytes_sent, size);
}

TEST_F(StatsTest, AreAnsweredWhileEveryHandlerThreadIsBusy) {
  std::vector<Future<void>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(b.call<&Worker::block>());  // there are two threads
  worker->began.wait();
  eventually("all calls have arrived", [&] { return ask("worker.block").accepted == 4; });
  worker->released.set();
  for (auto& call : calls) got(std::move(call));
}

struct Gauge final : CallHook {
  bool knows(std::string_view) const override { return false; }
  void stats(LayerStats& to) const override { to["gauge.level"] = level; }
  std::atomic<std::uint64_t> level{3};
};

// Each layer adds its figures through a hook. The agent knows nothing else of them.
TEST(StatsOfLayers, AreInTheStatsByName) {
  const auto gauge = std::make_shared<Gauge>();
  Cluster cluster{{}, {"a"}};
  cluster.add("b", {[gauge](Agent& agent) { agent.core()->hooks().add(gauge); }});
  const Peer b = cluster.peer("a", "b");
  EXPECT_EQ(got(stats(b)).layers, (LayerStats{{"gauge.level", 3}}));
  gauge->level = 5;
  EXPECT_EQ(got(stats(b)).layers.at("gauge.level"), 5U);
  const AgentStats here = stats(cluster["b"]);
  EXPECT_EQ(here.layers.at("gauge.level"), 5U);
  EXPECT_EQ(here.name, "b");
  EXPECT_GT(here.uptime, 0);
  EXPECT_EQ(here.connections, got(stats(b)).connections);
  EXPECT_TRUE(stats(cluster["a"]).layers.empty());
}

using Values = std::map<std::string, double>;

TEST(GaugesOfAProgram, AreInTheStatsOfTheirAgent) {
  const auto gauges = std::make_shared<Gauges>();
  Cluster cluster{{}, {"a"}};
  cluster.add("b", {gauges->layer()});
  const Peer b = cluster.peer("a", "b");
  EXPECT_EQ(got(stats(b)).gauges, Values{});
  gauges->set("loss", 0.5);
  gauges->set("rate", -1e-9);
  EXPECT_EQ(got(stats(b)).gauges, (Values{{"loss", 0.5}, {"rate", -1e-9}}));
  gauges->set("loss", 0.25);
  gauges->remove("rate");
  EXPECT_EQ(got(stats(b)).gauges, (Values{{"loss", 0.25}}));
  EXPECT_EQ(stats(cluster["b"]).gauges, gauges->values());
  EXPECT_TRUE(stats(cluster["a"]).gauges.empty());
}

TEST(GaugesOfAProgram, AreSharedBySeveralAgentsAndOutliveThem) {
  const auto gauges = std::make_shared<Gauges>();
  {
    Cluster cluster{{.layers = {gauges->layer()}}, {"a", "b"}};
    gauges->set("loss", 1);
    EXPECT_EQ(stats(cluster["a"]).gauges, stats(cluster["b"]).gauges);
  }
  EXPECT_EQ(gauges->values(), (Values{{"loss", 1}}));
}

TEST(GaugesOfAProgram, AreSetByManyThreads) {
  Gauges gauges;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int k = 0; k < 500; ++k) {
        gauges.set(std::to_string(i), k);
        gauges.set("common", k);
        if (gauges.values().empty()) ADD_FAILURE() << "a value was lost";
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(gauges.values(), (Values{{"0", 499}, {"1", 499}, {"2", 499}, {"3", 499}, {"common", 499}}));
}

// The stats of an agent of a version without gauges, with the fields that this test uses.
struct EarlierStats {
  std::string name;
  LayerStats layers;
  std::uint64_t exceptions_dropped = 0;
};
WEFT_CODEC(EarlierStats, name, layers, exceptions_dropped)

TEST(GaugesOfAProgram, AreOptionalInTheStatsOfOtherVersions) {
  const AgentStats later = unpack<AgentStats>(pack(EarlierStats{"a", {{"x.y", 3}}, 7}));
  EXPECT_EQ(later.name, "a");
  EXPECT_EQ(later.exceptions_dropped, 7U);
  EXPECT_TRUE(later.gauges.empty());

  AgentStats stats;
  stats.name = "b";
  stats.gauges = {{"loss", 0.5}};
  EXPECT_EQ(unpack<EarlierStats>(pack(stats)).name, "b");
}

}  // namespace
}  // namespace weft::rpc::stats_test
