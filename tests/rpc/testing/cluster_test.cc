#include <weft/rpc/testing/cluster.h>

#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>

namespace weft::test::cluster_test {
namespace {

std::string name_of(std::string text) { return text + "!"; }
using NameOf = rpc::Function<"name_of", &name_of>;

TEST(Cluster, AgentsReachEachOtherInMemoryAndOverLoopback) {
  for (const bool tcp : {false, true}) {
    Cluster cluster({.tcp = tcp}, {"anna", "bert"});
    cluster["bert"].serve<NameOf>();
    EXPECT_EQ(cluster["bert"].addresses().front().substr(0, 4), tcp ? "tcp:" : "inpr");
    EXPECT_EQ(got(cluster.peer("anna", "bert").call<NameOf>("bert")), "bert!");
    EXPECT_EQ(got(cluster.peer("bert", "bert").call<NameOf>("me")), "me!");
    EXPECT_EQ(cluster.names(), (std::vector<std::string>{"anna", "bert"}));
  }
}

TEST(Cluster, CallsToAnEndedAgentFail) {
  Cluster cluster({}, {"anna", "bert"});
  const rpc::Peer peer = cluster.peer("anna", "bert");
  cluster.end("bert");
  EXPECT_THROW(got(peer.call<NameOf>("bert")), rpc::Error);
}

TEST(Cluster, LogRecordsOfAgentsAreKept) {
  Cluster cluster({.adjust = [](rpc::AgentOptions& options) { options.handler_threads = 1; }}, {"anna"});
  cluster["anna"].core()->log().write(rpc::LogLevel::warning, "it rains");
  EXPECT_EQ(cluster.logged("rain").size(), 1U);
  EXPECT_EQ(cluster.logged("rain").front().agent, "anna");
  EXPECT_TRUE(cluster.logged("snow").empty());
}

}  // namespace
}  // namespace weft::test::cluster_test
