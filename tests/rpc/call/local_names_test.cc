// Two files of one program may each have a class of the same name that is local to the file. The twin is
// local_names_twin_test.cc.
#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>

namespace weft::rpc::local_names_test {
namespace {

struct Clerk {
  std::string file() const { return "local_names_test"; }
  using Service = rpc::Service<"names.clerk", Method<"file", &Clerk::file>>;
};
std::string file() { return "local_names_test"; }

TEST(LocalNames, EachFileHasItsOwnClassAndFunction) {
  Agent agent{{.name = "agent"}};
  agent.serve(std::make_shared<Clerk>());
  agent.serve<Function<"file", &file>>();
  EXPECT_EQ(agent.peer("agent").call<&Clerk::file>().get(), "local_names_test");
  EXPECT_EQ((agent.peer("agent").call<Function<"file", &file>>().get()), "local_names_test");
}

}  // namespace
}  // namespace weft::rpc::local_names_test
