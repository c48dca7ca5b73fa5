// The names of agents, and the texts of handlers' failures, which arrive unchanged.
#include <weft/rpc/agent/agent.h>

#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

#include <algorithm>

#include "tests/support/cluster.h"
#include "tests/support/hand_loop.h"

namespace weft::rpc::agent_test {
namespace {

TEST(AgentNames, MustNotBeEmptyAddressesOrTooLong) {
  const auto refused = [](const std::string& name) {
    return test::error_of([&] { Agent agent{AgentOptions{.name = name}}; });
  };
  for (const std::string& name : {std::string(), std::string("tcp://127.0.0.1:80"), std::string(500, 'a')}) {
    const auto error = refused(name);
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->kind(), ErrorKind::invalid_argument) << name;
    EXPECT_NE(std::string(error->what()).find("name"), std::string::npos) << error->what();
  }
  EXPECT_FALSE(refused("worker 0 of Zürich"));
}

void fail(std::string text) { throw std::runtime_error(text); }
using Fail = Function<"agent_test_fail", &fail>;

TEST(HandlerErrors, KeepTheLinesOfTheirText) {
  test::Cluster cluster{{}, {"here", "there"}};
  cluster["there"].serve<Fail>();
  const std::string text = "first line\nsecond \\n \"line\"\n\tand Zürich\n";
  try {
    test::got(cluster.peer("here", "there").call<Fail>(text));
    ADD_FAILURE() << "no error";
  } catch (const RemoteError& error) {
    EXPECT_EQ(error.detail(), text);
  }
}

TEST(AgentLog, EscapesTextsFromPeers) {
  test::Cluster cluster{{}, {"here"}};
  cluster["here"].core()->log().write(LogLevel::warning, "evil\x1b[2J\r\nweft: all is well");
  ASSERT_EQ(cluster.log().size(), 1U);
  EXPECT_EQ(cluster.log().front().message, "evil\\x1b[2J\\x0d\n    weft: all is well");
}

TEST(AgentLog, SummarisesMessagesThatPeersCanRepeat) {
  test::Cluster cluster{{}, {"here"}};
  const auto loop = std::make_shared<test::HandLoop>();
  const auto core = cluster["here"].core();
  for (int i = 0; i < 2000; ++i) core->log().write_some("connections refused", loop, "a silent one");
  for (int i = 0; i < 3; ++i) core->log().write_some("calls denied", loop, "a denied one");
  const auto warnings = [&](const std::string& words) {
    const auto lines = cluster.logged(words);
    return std::count_if(lines.begin(), lines.end(),
                         [](const auto& line) { return line.level == LogLevel::warning; });
  };
  EXPECT_EQ(warnings("a silent one"), 10);
  EXPECT_EQ(warnings("a denied one"), 3);
  loop->advance(std::chrono::seconds{10});
  loop->turn();
  EXPECT_EQ(warnings("connections refused: 1990 more within 10 s"), 1);
  for (int i = 0; i < 20; ++i) core->log().write_some("connections refused", loop, "a silent one");
  EXPECT_EQ(warnings("a silent one"), 20) << "the next ten seconds have ten of their own";
}

TEST(AgentSecrets, TheSeedOfTheTablesDiffersFromTheIncarnation) {
  test::Cluster cluster{{}, {"here", "there"}};
  const auto seed = [&](const char* name) { return cluster[name].core()->sessions().id_seed(); };
  EXPECT_NE(seed("here"), cluster["here"].id().incarnation);
  EXPECT_NE(seed("here"), 0U);
  EXPECT_NE(seed("here"), seed("there"));
}

}  // namespace
}  // namespace weft::rpc::agent_test
