#include <weft/rpc/agent/agent.h>

#include "tests/support/cluster.h"

namespace weft::rpc::health_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

struct Worker {
  void block() {
    began.set();
    released.wait();
  }
  using Service = rpc::Service<"worker", Method<"block", &Worker::block>>;
  Event began, released;
};

class HealthTest : public testing::Test {
 protected:
  Health ask() { return got(health(cluster.peer("a", "b"))); }

  std::vector<std::shared_ptr<Worker>> workers;
  Cluster cluster{{}, {"a", "b"}};
};

TEST_F(HealthTest, IsServedByEveryAgent) {
  const Health found = ask();
  EXPECT_EQ(found.status, "serving");
  EXPECT_EQ(found.name, "b");
  EXPECT_EQ(found.incarnation, cluster["b"].id().incarnation);
  EXPECT_FALSE(found.version.empty());
  EXPECT_EQ(found.calls_made, 0);
  // A call counts as in flight until its reply has been sent. The client may receive the reply before that.
  eventually("no call is in flight", [&] { return ask().calls_served == 0; });
}

TEST_F(HealthTest, UptimeGrows) {
  const double first = ask().uptime, second = ask().uptime;
  EXPECT_GE(first, 0);
  EXPECT_GT(second, first);
}

TEST_F(HealthTest, IsAnsweredWhileEveryHandlerThreadIsBusy) {
  std::vector<Future<void>> calls;
  Agent& b = cluster["b"];
  auto worker = std::make_shared<Worker>();
  b.serve(worker);
  for (int i = 0; i < 5; ++i)  // there are two threads
    calls.push_back(cluster.peer("a", "b").call<&Worker::block>());
  worker->began.wait();
  eventually("five calls are in flight", [&] { return ask().calls_served == 5; });
  EXPECT_EQ(got(health(cluster.peer("b", "a"))).calls_made, 5);
  worker->released.set();
  for (auto& call : calls) got(std::move(call));
}

TEST_F(HealthTest, ADrainingAgentReportsItToEarlierClients) {
  Agent& b = cluster["b"];
  Event began, released;
  MethodEntry held = *b.methods().find(name_hash(health_method));
  held.name = "held";
  held.id = name_hash("held");
  held.non_blocking = false;
  held.run = [&, run = held.run](std::shared_ptr<IncomingCall> call) {
    began.set();
    released.wait();
    run(std::move(call));
  };
  b.core()->methods().serve(held);
  const Peer peer = cluster.peer("a", "b");
  OutgoingCall call = peer.calls().make("held", 0);
  call.begin();
  call.end();
  auto asked = peer.calls().start_typed<Health>(std::move(call), [](Result<PendingCall::Reply>&& reply) {
    return decode_reply<Health>(std::move(reply), "held");
  });
  began.wait();
  auto drained = b.drain(1h);
  EXPECT_EQ(kind_of([&] { got(health(peer)); }), ErrorKind::shut_down);
  released.set();
  const Health found = got(std::move(asked));
  EXPECT_EQ(found.status, "draining");
  got(std::move(drained));
}

}  // namespace
}  // namespace weft::rpc::health_test
