// A deadlock between objects on two agents: from the data of the agents (weft.pending) to the output of `weft
// hang`.
#include <weft/rpc/agent/calls_in_flight.h>
#include <weft/rref/rref.h>

#include <gtest/gtest.h>

#include <set>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tools/weft/wait_graph.h"

namespace weft::tool::hang_test {
namespace {

using rref::RRef;
using test::eventually;
using test::got;

// While its plain handlers wait for other objects, they keep their thread and the object's turn.
struct Desk {
  explicit Desk(std::string) {}
  std::string ask(rpc::CallContext& call, RRef<Desk> other, RRef<Desk> back) {
    return got(other.with(call).call<&Desk::relay>(back));
  }
  std::string relay(rpc::CallContext& call, RRef<Desk> back) {
    return got(back.with(call).call<&Desk::sign>());
  }
  std::string sign() { return "signed"; }
  using Service = rpc::Service<"desk", rpc::Constructor<std::string>, rpc::Method<"ask", &Desk::ask>,
                               rpc::Method<"relay", &Desk::relay>, rpc::Method<"sign", &Desk::sign>>;
};

class HangTest : public testing::Test {
 protected:
  HangTest() {
    for (const char* name : {"berlin", "paris"}) cluster[name].allow_create<Desk>();
    berlin = rref::create<Desk>(cluster.peer("clerk", "berlin"), "berlin");
    paris = rref::create<Desk>(cluster.peer("clerk", "paris"), "paris");
    cluster.peer("berlin", "paris");
    cluster.peer("paris", "berlin");
  }
  // Queries the agents as `weft hang` does.
  std::vector<rpc::CallsInFlight> ask_all() {
    std::vector<rpc::CallsInFlight> all;
    for (const char* name : {"berlin", "paris", "clerk"})
      all.push_back(got(rpc::calls_in_flight(cluster.peer("looker", name))));
    return all;
  }
  static std::vector<rpc::ServedCall> served(const rpc::CallsInFlight& agent, const std::string& method,
                                             const std::string& state) {
    std::vector<rpc::ServedCall> found;
    for (const auto& call : agent.served)
      if (call.method == method && call.state == state) found.push_back(call);
    return found;
  }

  test::Cluster cluster{{.layers = rref::layers()}, {"berlin", "paris", "clerk", "looker"}};
  RRef<Desk> berlin, paris;
};

TEST_F(HangTest, ADeadlockOfObjectsOnTwoAgentsIsNamedAsACycle) {
  auto asked = berlin.call<&Desk::ask>(paris, berlin);
  std::vector<rpc::CallsInFlight> agents;
  eventually("the call that comes back is queued", [&] {
    agents = ask_all();
    return served(agents[0], "desk.sign", "queued").size() == 1;
  });
  const auto asking = served(agents[0], "desk.ask", "running"),
             back = served(agents[0], "desk.sign", "queued");
  ASSERT_EQ(asking.size(), 1U);
  EXPECT_EQ(asking[0].on, "object");
  EXPECT_EQ(back[0].on, "object");
  EXPECT_EQ(back[0].queue, asking[0].queue) << "the same object's";
  EXPECT_EQ(served(agents[1], "desk.relay", "running").size(), 1U);

  const WaitGraph graph = wait_graph(agents, 0);
  const std::string text = text_of(graph);
  ASSERT_EQ(graph.cycles.size(), 1U) << text;
  ASSERT_EQ(graph.cycles[0].size(), 3U) << text;
  std::set<std::string> members;
  for (const std::size_t call : graph.cycles[0])
    members.insert(graph.calls[call].name.caller + ": " +
                   graph.calls[call].text.substr(0, graph.calls[call].text.find(',')));
  EXPECT_EQ(members, (std::set<std::string>{"clerk: desk.ask on berlin", "berlin: desk.relay on paris",
                                            "paris: desk.sign on berlin"}));
  EXPECT_NE(text.find("cycle of 3 calls:\n"), std::string::npos) << text;
  EXPECT_NE(text.find("a deadlock, if it persists"), std::string::npos) << text;

  // A call that only waits for calls of the cycle is not part of a cycle.
  auto late = berlin.call<&Desk::sign>();
  eventually("another call is queued", [&] {
    agents = ask_all();
    return served(agents[0], "desk.sign", "queued").size() == 2;
  });
  EXPECT_EQ(wait_graph(agents, 0).cycles.size(), 1U);
  EXPECT_FALSE(late.ready());

  // When the first call is cancelled, the calls that its handlers made are cancelled too.
  asked.cancel();
  EXPECT_EQ(test::kind_of([&] { got(std::move(asked)); }), rpc::ErrorKind::cancelled);
  EXPECT_EQ(got(std::move(late)), "signed");
  eventually("no call is in flight", [&] { return wait_graph(ask_all(), 0).calls.empty(); });
}

TEST_F(HangTest, AChainThatEndsIsNotACycle) {
  std::vector<rpc::Future<std::string>> done;
  for (int i = 0; i < 20; ++i) done.push_back(paris.call<&Desk::relay>(berlin));
  while (true) {
    EXPECT_TRUE(wait_graph(ask_all(), 0).cycles.empty());
    if (done.empty()) break;
    EXPECT_EQ(got(std::move(done.back())), "signed");
    done.pop_back();
  }
}

}  // namespace
}  // namespace weft::tool::hang_test
