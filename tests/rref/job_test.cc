// RRefs in a job that agents have joined.
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::job_test {
namespace {

TEST(RRefJob, OfOneAgentCallsItselfKeepsObjectsAndLeaves) {
  rpc::AgentOptions options{.name = "worker0", .listen = {"inproc://host"}, .handler_threads = 2};
  options.in_process = std::make_shared<rpc::InProcess>();
  options.rendezvous = rpc::Rendezvous{.store = "inproc://host", .rank = 0, .world_size = 1};
  options.log = [](const rpc::LogRecord&) {};
  Counted::alive = 0;
  {
    rpc::Agent agent{std::move(options), layers()};
    agent.serve(std::make_shared<Keeper>(agent));
    agent.allow_create<Box>();
    got(agent.wait_for(1));
    EXPECT_EQ(agent.rank(), 0U);
    EXPECT_EQ(agent.world_size(), 1U);
    EXPECT_EQ(agent.members().size(), 1U);
    const rpc::Peer self = agent.peer("worker0");
    EXPECT_EQ(got(self.call<&Keeper::sum>(2, 3)), 5);
    EXPECT_EQ(got(remote<&Keeper::sum>(self, 4, 5).to_here()), 9);
    {
      const auto box = create<Box>(self, 6);
      EXPECT_TRUE(box.is_owner());
      EXPECT_EQ(got(box.call<&Box::add>(1)), 7);
      EXPECT_EQ(got(box.remote<&Box::get>().to_here()), 7);
    }
    eventually("the object is gone", [] { return Counted::alive == 0; });
    got(agent.leave());
  }
  EXPECT_EQ(Counted::alive, 0);
}

}  // namespace
}  // namespace weft::rref::job_test
