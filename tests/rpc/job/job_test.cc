// Jobs of several agents in one process.
#include <weft/rpc/job/job.h>

#include <cstdlib>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::job_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

// Three members of a fixed world, each by an agent of the program.
class Members {
 public:
  Members() : agents_(test::job_kind<test::InProcessJobStore>("in_process"), 3) {
    for (std::size_t rank = 0; rank < 3; ++rank) jobs_.push_back(std::make_unique<Job>(agents_.start(rank)));
  }
  Job& operator[](std::size_t rank) { return *jobs_[rank]; }
  template <class F>
  auto all(F operation) {
    std::vector<decltype(operation(*jobs_[0]))> futures;
    for (const auto& job : jobs_) futures.push_back(operation(*job));
    return futures;
  }
  void join() {
    for (auto& joined : all([](Job& job) { return job.join(); })) test::got(std::move(joined));
  }

 private:
  test::Job agents_;
  std::vector<std::unique_ptr<Job>> jobs_;
};

TEST(Job, ReportsRankWorldSizeAndName) {
  Members members;
  EXPECT_EQ(members[2].rank(), 2u);
  EXPECT_EQ(members[2].world_size(), 3u);
  EXPECT_EQ(members[2].name(), "worker2");
  EXPECT_EQ(&members[2].agent(), &members[2].agent());
}

// Uses default arguments, because g++ 12 would destroy options in a default argument twice.
Task<std::size_t> met_in_a_coroutine(Job& job) {
  co_await job.join();
  co_await job.barrier();
  const auto all = co_await job.all_gather(std::string("a value"));
  co_await job.quiesce();
  co_return all.size();
}

TEST(Job, CollectivesWithoutOptionsAreAwaitedInCoroutines) {
  Members members;
  std::vector<Future<std::size_t>> met;
  for (std::size_t rank = 0; rank < 3; ++rank)
    met.push_back(met_in_a_coroutine(members[rank]).start(members[rank].agent().core()->handlers()));
  for (auto& one : met) EXPECT_EQ(test::got(std::move(one)), 3u);
}

TEST(Job, JoinWaitsForAllRanks) {
  Members members;
  auto first = members[0].join(), second = members[1].join();
  test::got(members[0].wait_for(2));
  EXPECT_FALSE(first.ready());
  test::got(members[2].join());
  test::got(std::move(first));
  test::got(std::move(second));
  EXPECT_EQ(members[1].members().size(), 3u);
}

TEST(Job, ServesUntilAllMembersShutDown) {
  Members members;
  members.join();
  expect_error([&] { return members[0].serve_until_shutdown(100ms), 0; }, ErrorKind::deadline_exceeded);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&job = members[rank]] { job.serve_until_shutdown(); });
  for (std::thread& thread : threads) thread.join();
  members[0].serve_until_shutdown();  // has left: returns
}

TEST(Job, AfterLeavingServingReturns) {
  Members members;
  members.join();
  test::got(members[2].leave());
  members[2].serve_until_shutdown();
}

TEST(Job, NeedsARendezvous) {
  EXPECT_EQ(test::kind_of([] { return Job(MemberOptions{{.name = "alone"}}).rank(); }),
            ErrorKind::invalid_argument);
  Agent agent{AgentOptions{.name = "alone"}};
  expect_error([&] { return Job(agent).rank(); }, ErrorKind::failed_precondition,
               whole("'alone' has no job: construct its agent with Job::layer(), or by a Job"));
}

TEST(Job, IsThatOfAnAgentWithItsLayer) {
  const test::FileJobStore store;
  Agent agent(AgentOptions{.name = "anna", .listen = {"tcp://127.0.0.1:0"}},
              {Job::layer({.store = store.url, .rank = 0, .world_size = 1})});
  Job job(agent);
  EXPECT_EQ(&job.agent(), &agent);
  EXPECT_EQ(job.rendezvous().store, store.url);
  test::got(job.join());
  EXPECT_EQ(job.peer(0).name(), "anna");
  EXPECT_EQ(job.members().size(), 1u);
  test::got(agent.leave());
}

TEST(Job, IsCreatedFromAUrl) {
  const test::FileJobStore store;
  const auto rename = [](AgentOptions& options) { options.name = "renamed"; };
  Job first = Job::from_url(store.url + "?rank=0&world_size=2", {}, rename);
  Job second = Job::from_url(store.url + "?rank=1&world_size=2");
  auto joined = first.join();
  test::got(second.join());
  test::got(std::move(joined));
  EXPECT_EQ(first.name(), "renamed");
  EXPECT_EQ(second.name(), "worker1");
  EXPECT_EQ(second.rank(), 1u);
}

TEST(Job, IsCreatedFromTheEnvironment) {
  const test::FileJobStore store;
  for (const auto& [name, value] :
       {std::pair<const char*, std::string>{"WEFT_STORE", store.url}, {"RANK", "0"}, {"WORLD_SIZE", "1"}})
    ::setenv(name, value.c_str(), 1);
  bool layer = false;
  Job job = Job::from_environment({[&layer](Agent&) { layer = true; }});
  for (const char* name : {"WEFT_STORE", "RANK", "WORLD_SIZE"}) ::unsetenv(name);
  test::got(job.join());
  EXPECT_TRUE(layer);
  EXPECT_EQ(job.name(), "worker0");
  EXPECT_EQ(job.world_size(), 1u);
}

TEST(Job, InAnElasticWorldJoinDoesNotWait) {
  test::Job agents(test::job_kind<test::InProcessJobStore>("in_process"));
  Job host(agents.start(0));
  test::got(host.join());
  EXPECT_EQ(host.world_size(), 0u);
  const auto watch = host.watch_members();
  const auto events = test::got(watch->next());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].member.name, "worker0");
}

}  // namespace
}  // namespace weft::rpc::job_test
