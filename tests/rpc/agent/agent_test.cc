// How agents may be named, and that what handlers say of their failures arrives as they said it.
#include <weft/rpc/agent/agent.h>

#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::rpc::agent_test {
namespace {

TEST(AgentNames, AreNeitherEmptyNorAddressesNorTooLong) {
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

}  // namespace
}  // namespace weft::rpc::agent_test
