// The twin of local_names_test.cc.
#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>

namespace weft::rpc::local_names_twin_test {
namespace {

struct Clerk {
  std::string file() const { return "local_names_twin_test"; }
  using Service = rpc::Service<"names.twin_clerk", Method<"file", &Clerk::file>>;
};
std::string file() { return "local_names_twin_test"; }

TEST(LocalNamesTwin, EachFileHasItsOwnClassAndFunction) {
  Agent agent{{.name = "agent"}};
  agent.serve(std::make_shared<Clerk>());
  agent.serve<Function<"file", &file>>();
  EXPECT_EQ(agent.peer("agent").call<&Clerk::file>().get(), "local_names_twin_test");
  EXPECT_EQ((agent.peer("agent").call<Function<"file", &file>>().get()), "local_names_twin_test");
}

}  // namespace
}  // namespace weft::rpc::local_names_twin_test
