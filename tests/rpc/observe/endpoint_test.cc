#include <weft/rpc/observe/endpoint.h>

#include "tests/rpc/observe/http_support.h"
#include "tests/support/cluster.h"

namespace weft::observe::endpoint_test {
namespace {

using namespace std::chrono_literals;
using namespace weft::test;
using rpc::Method;
using test::get;

struct Worker {
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"worker", Method<"block", &Worker::block>>;
  Event began, released;
};

class EndpointTest : public testing::Test {
 protected:
  EndpointTest() { cluster["b"].serve(worker); }

  std::shared_ptr<Worker> worker = std::make_shared<Worker>();
  std::shared_ptr<Metrics> metrics =
      std::make_shared<Metrics>(MetricsOptions{.timeout = weft::test::too_long});
  Cluster cluster{{}, {"a", "b"}};
};

TEST_F(EndpointTest, ServesMetricsAndProbes) {
  rpc::Agent& c = cluster.add("c", {metrics->layer()});
  const Endpoint endpoint{c, metrics, {.timeout = weft::test::too_long}};
  const auto answer = get(endpoint.address(), "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("Content-Type: text/plain; version=0.0.4"), std::string::npos);
  EXPECT_NE(answer.body.find("# TYPE weft_calls_made_total counter\nweft_calls_made_total{agent=\"c\"} 0\n"),
            std::string::npos)
      << answer.body;
  EXPECT_EQ(get(endpoint.address(), "/livez").body, "live\n");
  EXPECT_EQ(get(endpoint.address(), "/readyz").body, "ready\n");
  EXPECT_EQ(get(Endpoint(c, nullptr).address(), "/metrics").status, 404);
}

TEST_F(EndpointTest, AnAgentWithABlockedLoopIsNotLive) {
  const Endpoint endpoint{cluster["b"], nullptr, {.timeout = 1ms}};
  const Endpoint patient{cluster["b"], nullptr, {.timeout = weft::test::too_long}};
  EXPECT_EQ(get(patient.address(), "/livez").status, 200);
  {
    HeldLoop held(cluster["b"]);
    EXPECT_EQ(get(endpoint.address(), "/livez").status, 503);
    const auto ready = get(endpoint.address(), "/readyz");
    EXPECT_EQ(ready.status, 503);
    EXPECT_TRUE(ready.body.starts_with("loop 0 has not answered for ")) << ready.body;
  }
  EXPECT_EQ(get(patient.address(), "/readyz").status, 200);
}

TEST_F(EndpointTest, AnAgentWithBusyHandlersIsLiveAndReady) {
  const Endpoint endpoint{cluster["b"], nullptr, {.timeout = weft::test::too_long}};
  std::vector<rpc::Future<void>> calls;
  for (int i = 0; i < 5; ++i) calls.push_back(cluster.peer("a", "b").call<&Worker::block>());
  worker->began.wait();
  EXPECT_EQ(get(endpoint.address(), "/livez").status, 200);
  EXPECT_EQ(get(endpoint.address(), "/readyz").status, 200);
  worker->released.set();
  for (auto& call : calls) got(std::move(call));
}

TEST_F(EndpointTest, ADrainingAgentIsLiveAndNotReady) {
  const Endpoint endpoint{cluster["b"], nullptr, {.timeout = weft::test::too_long}};
  auto call = cluster.peer("a", "b").call<&Worker::block>();
  worker->began.wait();
  auto drained = cluster["b"].drain(1h);
  EXPECT_EQ(get(endpoint.address(), "/livez").status, 200);
  const auto ready = get(endpoint.address(), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, "draining\n");
  worker->released.set();
  got(std::move(call));
  got(std::move(drained));
}

TEST_F(EndpointTest, TheProgramMayReportNotReady) {
  std::atomic<bool> loaded{false};
  const Endpoint endpoint{
      cluster["b"], nullptr, {.timeout = weft::test::too_long, .not_ready = [&] {
                                return loaded ? std::nullopt
                                              : std::optional<std::string>("the model is loading");
                              }}};
  EXPECT_EQ(get(endpoint.address(), "/readyz").body, "the model is loading\n");
  EXPECT_EQ(get(endpoint.address(), "/readyz").status, 503);
  loaded = true;
  EXPECT_EQ(get(endpoint.address(), "/readyz").status, 200);
}

TEST_F(EndpointTest, OutlivesItsAgent) {
  const Endpoint endpoint{cluster["b"], nullptr};
  cluster.end("b");
  EXPECT_EQ(get(endpoint.address(), "/livez").body, "shut down\n");
  EXPECT_EQ(get(endpoint.address(), "/readyz").status, 503);
}

}  // namespace
}  // namespace weft::observe::endpoint_test
