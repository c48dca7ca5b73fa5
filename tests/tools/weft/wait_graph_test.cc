#include "tools/weft/wait_graph.h"

#include <gtest/gtest.h>

namespace weft::tool::wait_graph_test {
namespace {

using rpc::CallName;
using rpc::CallsInFlight;

CallName call(const std::string& caller, std::uint64_t id) { return {caller, 1, id}; }

CallsInFlight agent(const std::string& name, std::uint64_t threads = 1) {
  CallsInFlight agent;
  agent.name = name;
  agent.incarnation = 1;
  agent.handler_threads = threads;
  return agent;
}

// `a` calls f on b. The handler of f calls g on c on behalf of that call.
std::vector<CallsInFlight> chain() {
  CallsInFlight a = agent("a"), b = agent("b"), c = agent("c");
  a.made.push_back({1, "f", "b", 9, "sent", 30, {}});
  b.served.push_back({call("a", 1), "f", 8.5, "running", "handlers", 5});
  b.made.push_back({4, "g", "c", 8, "sent", -1, call("a", 1)});
  c.served.push_back({call("b", 4), "g", 8, "running", "handlers", 6});
  return {a, b, c};
}
// The handler of g also calls b, where the call is queued.
std::vector<CallsInFlight> chain_back(const std::string& method = "h", const std::string& on = "handlers",
                                      std::uint64_t queue = 5) {
  auto agents = chain();
  agents[2].made.push_back({9, method, "b", 7, "sent", -1, call("b", 4)});
  agents[1].served.push_back({call("c", 9), method, 7, "queued", on, queue});
  return agents;
}

TEST(WaitGraph, FollowsACallThroughItsAgents) {
  const WaitGraph graph = wait_graph(chain(), 0);
  EXPECT_TRUE(graph.cycles.empty());
  EXPECT_EQ(text_of(graph),
            "a#1 f on b, 9.00 s, running on the handlers, deadline in 30.0 s\n"
            "  b#4 g on c, 8.00 s, running on the handlers\n");
}

TEST(WaitGraph, ACallBackToABusyAgentIsACycle) {
  auto agents = chain_back();
  const WaitGraph graph = wait_graph(agents, 0);
  ASSERT_EQ(graph.cycles.size(), 1U);
  EXPECT_EQ(text_of(graph),
            "a#1 f on b, 9.00 s, running on the handlers, deadline in 30.0 s\n"
            "  b#4 g on c, 8.00 s, running on the handlers\n"
            "    c#9 h on b, 7.00 s, queued for the handlers\n"
            "      a#1 f on b, 9.00 s, running on the handlers, deadline in 30.0 s (above)\n"
            "\ncycle of 3 calls:\n"
            "  a#1 f on b, 9.00 s, running on the handlers, deadline in 30.0 s, waits for\n"
            "  b#4 g on c, 8.00 s, running on the handlers, waits for\n"
            "  c#9 h on b, 7.00 s, queued for the handlers, waits for\n"
            "  a#1: a deadlock, if it persists\n");
}

TEST(WaitGraph, IsAlsoPrintedAsJson) {
  auto agents = chain_back();
  const WaitGraph graph = wait_graph(agents, 0);
  const PrintedJson json = json_of(graph);
  EXPECT_EQ(json["cycles"], PrintedJson({{0, 1, 2}}));
  ASSERT_EQ(json["calls"].size(), 3U);
  EXPECT_EQ(
      json["calls"][1].dump(),
      R"({"caller":"b","incarnation":1,"id":4,"text":"g on c, 8.00 s, running on the handlers","age":8.0,)"
      R"("waits_for":[2]})");
}

TEST(WaitGraph, NoCallWaitsWhileAThreadIsFree) {
  auto agents = chain_back();
  agents[1].handler_threads = 2;
  EXPECT_TRUE(wait_graph(agents, 0).cycles.empty());
}

TEST(WaitGraph, CallsOfOneObjectWaitForEachOtherWithAnyNumberOfThreads) {
  auto agents = chain_back("h", "object");
  agents[1].handler_threads = 64;
  agents[1].served[0].on = "object";
  EXPECT_EQ(wait_graph(agents, 0).cycles.size(), 1U);
  agents[1].served[1].queue = 55;  // another object
  EXPECT_TRUE(wait_graph(agents, 0).cycles.empty());
}

TEST(WaitGraph, ACallAtTheLimitOfItsMethodWaitsForTheRunningOnes) {
  auto agents = chain_back("f", "limit", 77);
  agents[1].handler_threads = 64;
  agents[1].served[0].state = "suspended";
  const WaitGraph graph = wait_graph(agents, 0);
  ASSERT_EQ(graph.cycles.size(), 1U);
  EXPECT_EQ(graph.cycles[0].size(), 3U);
  EXPECT_NE(text_of(graph).find("c#9 f on b, 7.00 s, queued for the limit\n"), std::string::npos)
      << text_of(graph);
  agents[1].served[1].method = "h";  // a call of another method
  EXPECT_TRUE(wait_graph(agents, 0).cycles.empty());
}

TEST(WaitGraph, SuspendedHandlersOccupyNoThread) {
  auto agents = chain_back();
  agents[1].served[0].state = "suspended";
  EXPECT_TRUE(wait_graph(agents, 0).cycles.empty());
}

TEST(WaitGraph, RecentCallsAreOmitted) {
  auto agents = chain();
  const WaitGraph graph = wait_graph(agents, 8.9);
  ASSERT_EQ(graph.calls.size(), 1U);
  EXPECT_TRUE(graph.calls[0].waits_for.empty());
  EXPECT_TRUE(wait_graph(agents, 10).calls.empty());
}

TEST(WaitGraph, ReportsUnknownStates) {
  CallsInFlight a = agent("a");
  a.made.push_back({1, "f", "b", 3, "sent", -1, {}});
  a.made.push_back({2, "f", "tcp://h:1", 2, "connecting", -1, {}});
  EXPECT_EQ(text_of(wait_graph({a}, 0)),
            "a#1 f on b, 3.00 s, state unknown: that agent was not queried\n"
            "a#2 f on tcp://h:1, 2.00 s, not sent: no connection\n");
  EXPECT_EQ(text_of(wait_graph({a, agent("b")}, 0)),
            "a#1 f on b, 3.00 s, not at that agent: in transit or completed\n"
            "a#2 f on tcp://h:1, 2.00 s, not sent: no connection\n");
}

TEST(WaitGraph, ServedCallsMayHaveAnUnqueriedCaller) {
  CallsInFlight b = agent("b");
  b.served.push_back({call("x", 3), "f", 2, "preparing", "", 0});
  EXPECT_EQ(text_of(wait_graph({b}, 0)), "x#3 f on b, 2.00 s, preparing\n");
}

TEST(WaitGraph, TwoCyclesAreReportedSeparately) {
  CallsInFlight a = agent("a", 64);
  for (const std::uint64_t i : {1, 2}) {  // a call that waits for a nested call to its own object
    a.made.push_back({10 * i, "f", "a", 5, "sent", -1, {}});
    a.served.push_back({call("a", 10 * i), "f", 5, "running", "object", i});
    a.made.push_back({10 * i + 1, "g", "a", 4, "sent", -1, call("a", 10 * i)});
    a.served.push_back({call("a", 10 * i + 1), "g", 4, "queued", "object", i});
  }
  const WaitGraph graph = wait_graph({a}, 0);
  ASSERT_EQ(graph.cycles.size(), 2U);
  EXPECT_EQ(graph.cycles[0].size(), 2U);
}

TEST(WaitGraph, LongAndWideChainsAreWalked) {
  CallsInFlight a = agent("a", 1'000'000);
  constexpr std::uint64_t n = 3000;
  for (std::uint64_t i = 1; i <= n; ++i) {
    a.made.push_back({i, "f", "a", 5, "sent", -1, i == 1 ? CallName{} : call("a", i - 1)});
    a.served.push_back({call("a", i), "f", 5, "running", "handlers", 1});
  }
  const WaitGraph graph = wait_graph({a}, 0);
  EXPECT_EQ(graph.calls.size(), n);
  EXPECT_TRUE(graph.cycles.empty());
  EXPECT_FALSE(text_of(graph).empty());
}

}  // namespace
}  // namespace weft::tool::wait_graph_test
