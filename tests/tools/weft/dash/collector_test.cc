#include "tools/weft/dash/collector.h"

#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/trace/tracer.h>
#include <weft/rref/rref.h>

#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/job.h"
#include "tools/weft/dash/picture.h"

namespace weft::tool::collector_test {
namespace {

using test::got;

struct Desk {
  explicit Desk(int) {}
  int sign() { return 1; }
  using Service = rpc::Service<"desk", rpc::Constructor<int>, rpc::Method<"sign", &Desk::sign>>;
};

// An agent with collectives serves this method. Collectives need LibTorch.
struct Groups {
  std::vector<std::string> flight(std::uint64_t latest) {
    collectives::FlightDump dump = collectives::FlightDump::here();
    dump.group = "world" + std::to_string(latest);
    dump.members = {"b"};
    return {json_of(dump)};
  }
  using Service = rpc::Service<"weft.collectives", rpc::Method<"flight", &Groups::flight>>;
};

std::string address_of(rpc::Agent& agent) { return agent.addresses().front(); }

TEST(CollectorTest, AsksEachAgentOnlyForItsServices) {
  const auto gauges = std::make_shared<rpc::Gauges>();
  const auto tracer = std::make_shared<rpc::Tracer>();
  test::Cluster cluster{{.tcp = true}};
  cluster.add("a");
  rpc::Layers layers = rref::layers();
  layers.push_back(gauges->layer());
  layers.push_back(tracer->layer());
  cluster.add("b", layers).serve(std::make_shared<Groups>());
  cluster.add("c", rref::layers());
  cluster["b"].allow_create<Desk>();
  gauges->set("loss", 0.5);
  const auto desk = rref::create<Desk>(cluster.peer("c", "b"), 1);
  EXPECT_EQ(got(desk.call<&Desk::sign>()), 1);

  Client client(address_of(cluster["a"]), test::too_long);
  Collector collector(client, {address_of(cluster["b"]), address_of(cluster["b"])});
  const JobSample sample = collector.collect();
  EXPECT_FALSE(sample.members);
  ASSERT_EQ(sample.agents.size(), 2U);  // b once
  const AgentSample& a = sample.agents[sample.agents[0].stats.name == "a" ? 0 : 1];
  const AgentSample& b = sample.agents[sample.agents[0].stats.name == "a" ? 1 : 0];
  EXPECT_EQ(a.silent, "");
  EXPECT_FALSE(a.references);
  EXPECT_FALSE(a.spans);
  EXPECT_TRUE(a.groups.empty());
  EXPECT_EQ(b.stats.gauges.at("loss"), 0.5);
  ASSERT_TRUE(b.references);
  EXPECT_EQ(b.references->objects.size(), 1U);
  ASSERT_TRUE(b.spans);
  EXPECT_FALSE(b.spans->spans.empty());
  ASSERT_EQ(b.groups.size(), 1U);
  EXPECT_EQ(b.groups[0].group, "world8");
  for (const AgentSample& agent : sample.agents)  // the Collector's own calls are not shown
    EXPECT_TRUE(agent.calls.served.empty());
}

TEST(CollectorTest, ARefusedQueryDoesNotAffectOtherQueries) {
  test::Cluster cluster{{.tcp = true}, {"a"}};
  struct Refusing {
    std::vector<std::string> flight(std::uint64_t) {
      throw rpc::Error(rpc::ErrorKind::permission_denied, "no");
    }
    using Service = rpc::Service<"weft.collectives", rpc::Method<"flight", &Refusing::flight>>;
  };
  cluster["a"].serve(std::make_shared<Refusing>());
  Client client(address_of(cluster["a"]), test::too_long);
  const JobSample sample = Collector(client, {}).collect();
  ASSERT_EQ(sample.agents.size(), 1U);
  EXPECT_EQ(sample.agents[0].silent, "");
  EXPECT_EQ(sample.agents[0].stats.name, "a");
  EXPECT_TRUE(sample.agents[0].groups.empty());
}

TEST(CollectorTest, AnAgentThatHasEndedIsSilentAndItsNextIncarnationIsAskedAgain) {
  test::Cluster cluster{{.tcp = true}, {"a", "b"}};
  const std::string address = address_of(cluster["b"]);
  Client client(address_of(cluster["a"]), std::chrono::seconds{5});
  Collector collector(client, {address});
  EXPECT_EQ(collector.collect().agents.size(), 2U);
  cluster.end("b");
  const JobSample sample = collector.collect();
  ASSERT_EQ(sample.agents.size(), 2U);
  EXPECT_EQ(sample.agents[0].silent.empty() + sample.agents[1].silent.empty(), 1);

  const auto gauges = std::make_shared<rpc::Gauges>();
  gauges->set("loss", 1);
  rpc::Agent again({.name = "b", .listen = {address}}, {gauges->layer()});
  test::eventually("the next incarnation answers", [&] {
    for (const AgentSample& agent : collector.collect().agents)
      if (agent.stats.gauges.contains("loss")) return true;
    return false;
  });
}

TEST(CollectorTest, FindsTheMembersOfAJobByTheAgentWithTheStore) {
  test::TcpJobStore store;
  std::vector<std::unique_ptr<rpc::Job>> jobs;
  for (std::size_t rank = 0; rank < 3; ++rank)
    jobs.push_back(std::make_unique<rpc::Job>(rpc::MemberOptions{
        {.name = "worker" + std::to_string(rank), .listen = {rank == 0 ? store.url : "tcp://127.0.0.1:0"}},
        {.store = store.url, .rank = rank, .world_size = 3}}));
  std::vector<rpc::Future<void>> joined;
  for (auto& job : jobs) joined.push_back(job->join());
  for (auto& each : joined) got(std::move(each));

  Client client(store.url, test::too_long);
  Collector collector(client, {});
  Picture picture;
  picture.add(collector.collect());
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["members"].size(), 3U);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& member = json["members"][rank];
    EXPECT_EQ(member["rank"], rank);
    EXPECT_EQ(member["name"], "worker" + std::to_string(rank));
    EXPECT_EQ(member["state"], "alive");
    EXPECT_EQ(member["incarnation"], std::to_string(jobs[rank]->agent().id().incarnation));
    EXPECT_GT(member["uptime"].get<double>(), 0);
  }
}

}  // namespace
}  // namespace weft::tool::collector_test
