#include <weft/rpc/observe/metrics.h>

#include <weft/rpc/agent/stats.h>

#include <cstring>

#include "tests/support/cluster.h"

namespace weft::observe::metrics_test {
namespace {

using namespace std::chrono_literals;
using namespace weft::test;
using rpc::ErrorKind;
using rpc::Method;

struct Worker {
  int twice(int x) { return 2 * x; }
  void fail() { throw rpc::Error(ErrorKind::failed_precondition, "no"); }
  std::uint64_t size(rpc::Buffer bytes) { return bytes.size(); }
  using Service = rpc::Service<"worker", Method<"twice", &Worker::twice>, Method<"fail", &Worker::fail>,
                               Method<"size", &Worker::size>>;
};

void nowhere() {}
using Nowhere = rpc::Function<"nowhere", &nowhere>;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() {
    cluster.add("a", {a->layer()});
    cluster.add("b", {b->layer()});
    cluster["b"].serve(std::make_shared<Worker>());
    peer = cluster.peer("a", "b");
  }
  // The line of a metric, without its value; then the value.
  static std::optional<double> value(const Metrics& metrics, const std::string& series) {
    const std::string text = "\n" + metrics.text();
    const auto at = text.find("\n" + series + " ");
    if (at == std::string::npos) return std::nullopt;
    return std::stod(text.substr(at + series.size() + 2));
  }

  std::shared_ptr<Metrics> a = std::make_shared<Metrics>(MetricsOptions{.timeout = weft::test::too_long});
  std::shared_ptr<Metrics> b =
      std::make_shared<Metrics>(MetricsOptions{.seconds = {3600}, .timeout = weft::test::too_long});
  Cluster cluster{{}};
  std::optional<rpc::Peer> peer;
};

TEST_F(MetricsTest, CountCallsOnBothSidesByMethod) {
  for (int i = 0; i < 3; ++i) got(peer->call<&Worker::twice>(i));
  EXPECT_EQ(value(*a, R"(weft_made_seconds_count{agent="a",method="worker.twice"})"), 3);
  EXPECT_EQ(value(*b, R"(weft_served_seconds_count{agent="b",method="worker.twice"})"), 3);
  EXPECT_EQ(value(*b, R"(weft_served_seconds_bucket{agent="b",method="worker.twice",le="3600"})"), 3);
  EXPECT_GE(value(*a, R"(weft_made_seconds_sum{agent="a",method="worker.twice"})"), 0);
  EXPECT_EQ(value(*a, R"(weft_served_seconds_count{agent="a",method="worker.twice"})"), std::nullopt);
  EXPECT_EQ(value(*b, R"(weft_calls_received_total{agent="b"})"),
            static_cast<double>(cluster["b"].counts().calls_served));
}

TEST_F(MetricsTest, CountFailuresByKind) {
  EXPECT_EQ(kind_of([&] { got(peer->call<&Worker::fail>()); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(peer->call<Nowhere>()); }), ErrorKind::not_found);
  EXPECT_EQ(
      value(*a, R"(weft_made_failures_total{agent="a",method="worker.fail",kind="failed_precondition"})"), 1);
  EXPECT_EQ(
      value(*b, R"(weft_served_failures_total{agent="b",method="worker.fail",kind="failed_precondition"})"),
      1);
  EXPECT_EQ(value(*b, R"(weft_served_failures_total{agent="b",method="unknown",kind="not_found"})"), 1);
}

TEST_F(MetricsTest, ContainTheCountersOfTheAgent) {
  EXPECT_EQ(value(*b, R"(weft_connections{agent="b"})"), 1);
  EXPECT_EQ(value(*b, R"(weft_connections_made_total{agent="b"})"), 1);
  EXPECT_GT(*value(*b, R"(weft_received_bytes_total{agent="b"})"), 0);
  EXPECT_EQ(value(*b, R"(weft_calls_denied_total{agent="b"})"), 0);
  EXPECT_EQ(value(*b, R"(weft_pool_kept_bytes{agent="b"})"), 0);
}

struct Gauge final : rpc::CallHook {
  bool knows(std::string_view) const override { return false; }
  void stats(rpc::LayerStats& to) const override { to["gauge.level"] = 3; }
};

TEST_F(MetricsTest, ContainTheFiguresOfLayers) {
  auto metrics = std::make_shared<Metrics>();
  cluster.add("c", {metrics->layer(),
                    [](rpc::Agent& agent) { agent.core()->hooks().add(std::make_shared<Gauge>()); }});
  EXPECT_EQ(value(*metrics, R"(weft_layer{agent="c",figure="gauge.level"})"), 3);
}

TEST_F(MetricsTest, ContainTheGaugesOfTheProgram) {
  auto metrics = std::make_shared<Metrics>();
  auto gauges = std::make_shared<rpc::Gauges>();
  cluster.add("c", {metrics->layer(), gauges->layer()});
  EXPECT_EQ(value(*metrics, R"(weft_gauge{agent="c",name="loss"})"), std::nullopt);
  gauges->set("loss", 0.25);
  EXPECT_EQ(value(*metrics, R"(weft_gauge{agent="c",name="loss"})"), 0.25);
}

TEST_F(MetricsTest, ContainTheHitRateOfThePool) {
  auto metrics = std::make_shared<Metrics>();
  Cluster sockets{{.tcp = true}};  // the in-process transport receives no bytes
  sockets.add("client");
  sockets.add("server", {metrics->layer()}).serve(std::make_shared<Worker>());
  const rpc::Peer server = sockets.peer("client", "server");
  const auto hits = [&] { return *value(*metrics, R"(weft_pool_hits_total{agent="server"})"); };
  const auto misses = [&] { return *value(*metrics, R"(weft_pool_misses_total{agent="server"})"); };
  EXPECT_EQ(hits(), 0);
  EXPECT_EQ(misses(), 0);
  rpc::Buffer large = rpc::Buffer::allocate(200'000);
  std::memset(large.data(), 0, large.size());
  double calls = 0;
  const auto call = [&] {
    ++calls;
    EXPECT_EQ(got(server.call<&Worker::size>(large)), large.size());
  };
  call();
  EXPECT_EQ(misses(), 1) << "there was no memory yet that had been used before";
  // The memory returns to the pool shortly after the reply.
  eventually("memory is used again", [&] {
    call();
    return hits() >= 1;
  });
  EXPECT_EQ(hits() + misses(), calls);
}

TEST_F(MetricsTest, MeasureTheDelayOfLoopsAndReportABlockedOne) {
  EXPECT_GE(*value(*b, R"(weft_loop_delay_seconds{agent="b",loop="0"})"), 0);
  EXPECT_GT(*value(*b, R"(weft_loop_cpu_seconds_total{agent="b",loop="0"})"), 0);
  auto impatient = std::make_shared<Metrics>(MetricsOptions{.timeout = 1ms});
  rpc::Agent& c = cluster.add("c", {impatient->layer()});
  HeldLoop held(c);
  const auto first = value(*impatient, R"(weft_loop_delay_seconds{agent="c",loop="0"})");
  const auto second = value(*impatient, R"(weft_loop_delay_seconds{agent="c",loop="0"})");
  EXPECT_GE(first, 0.001);
  EXPECT_GE(second, *first + 0.001);  // the first query of the loop is still pending
}

TEST_F(MetricsTest, KeepTheHistogramsOfAnAgentThatEnded) {
  got(peer->call<&Worker::twice>(1));
  cluster.end("b");
  EXPECT_EQ(value(*b, R"(weft_served_seconds_count{agent="b",method="worker.twice"})"), 1);
  EXPECT_EQ(value(*b, R"(weft_connections{agent="b"})"), std::nullopt);
}

TEST_F(MetricsTest, CombineMethodsBeyondTheLimitIntoOne) {
  auto few = std::make_shared<Metrics>(MetricsOptions{.max_methods = 2});
  cluster.add("c", {few->layer()});
  const rpc::Peer to = cluster.peer("c", "b");  // the first method is weft.ping
  got(to.call<&Worker::twice>(1));
  EXPECT_EQ(kind_of([&] { got(to.call<&Worker::fail>()); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(to.call<Nowhere>()); }), ErrorKind::not_found);
  EXPECT_EQ(value(*few, R"(weft_made_seconds_count{agent="c",method="worker.twice"})"), 1);
  EXPECT_EQ(value(*few, R"(weft_made_seconds_count{agent="c",method="worker.fail"})"), std::nullopt);
  EXPECT_EQ(value(*few, R"(weft_made_seconds_count{agent="c",method="other"})"), 2);
}

TEST_F(MetricsTest, CannotBeUsedByTwoAgents) {
  EXPECT_EQ(kind_of([&] { cluster.add("c", {a->layer()}); }), ErrorKind::failed_precondition);
}

}  // namespace
}  // namespace weft::observe::metrics_test
