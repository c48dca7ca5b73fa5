// Jobs whose world is not fixed, in one process: the suite over each kind of store that needs no process.
#include "tests/support/elastic_world_suite.h"

#include <weft/rpc/testing/simulation/sim_agent.h>

namespace weft::test {

INSTANTIATE_TEST_SUITE_P(Stores, ElasticWorld,
                         testing::Values(job_kind<TcpJobStore>("tcp"),
                                         job_kind<InProcessJobStore>("in_process"),
                                         job_kind<FileJobStore>("file")),
                         [](const auto& info) { return std::string(info.param.name); });

// The agent that keeps the store dies, or its host does.
TEST(ElasticWorldInVirtualTime, WaitsFailAfterTheLeaseIfTheStoreIsLost) {
  using namespace std::chrono_literals;
  for (const SimCrash how : {SimCrash::process, SimCrash::host}) {
    SimWorld world(1);
    const auto start = [&](const std::string& name, std::size_t rank) -> rpc::Agent& {
      return start_agent(
          world.start(name), {},
          {rpc::Job::layer({.store = "sim://keeper", .rank = rank, .fixed_world = false, .lease = 30s})});
    };
    world.got(rpc::Job(start("keeper", 0)).wait_for(1));
    rpc::Agent& anna = start("anna", rpc::Rendezvous::no_rank);
    world.got(rpc::Job(anna).wait_for(2));
    const auto watch = rpc::Job(anna).watch_members();
    EXPECT_EQ(world.got(watch->next()).size(), 2U);
    auto others = rpc::Job(anna).wait_for(3);
    auto event = watch->next();
    const auto begin = world.now();
    world.crash(*world.find("keeper"), how);
    EXPECT_EQ(kind_of([&] { world.got(std::move(others)); }), rpc::ErrorKind::unavailable);
    EXPECT_EQ(kind_of([&] { world.got(std::move(event)); }), rpc::ErrorKind::unavailable);
    EXPECT_GE(world.now() - begin, 20s) << "the lease stands until then";
    EXPECT_LE(world.now() - begin, 40s);
    EXPECT_EQ(anna.core()->job_error(), std::nullopt) << "calls to others go on";
  }
}

}  // namespace weft::test
