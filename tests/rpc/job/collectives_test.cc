// Barriers and all_gathers over the members of a job, in worlds of both kinds.
#include <weft/rpc/job/membership/collective_leader.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"
#include "tests/support/lost_connections.h"

namespace weft::rpc::collectives_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using test::Job;

constexpr std::size_t no_rank = Rendezvous::no_rank;

const JobKind kinds[] = {test::job_kind<test::TcpJobStore>("tcp"),
                         test::job_kind<test::InProcessJobStore>("in_process"),
                         test::job_kind<test::FileJobStore>("file")};
std::string name_of(const testing::TestParamInfo<JobKind>& info) { return info.param.name; }

// Runs on a thread for each of the members, and waits for all.
template <class F>
void on_each(std::size_t members, F body) {
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < members; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

// --- A world of fixed size ---

class FixedCollectives : public testing::TestWithParam<JobKind> {
 protected:
  FixedCollectives() { job.start_all(); }
  Job job{GetParam(), 4};
};
INSTANTIATE_TEST_SUITE_P(Stores, FixedCollectives, testing::ValuesIn(kinds), name_of);

TEST_P(FixedCollectives, ABarrierCompletesOnceAllMembersHaveCalledIt) {
  std::atomic<std::size_t> came{0};
  on_each(4, [&](std::size_t rank) {
    for (std::size_t round = 1; round <= 10; ++round) {
      ++came;
      got(rpc::Job(job[rank]).barrier());
      EXPECT_GE(came, 4 * round);
      got(rpc::Job(job[rank]).barrier({.name = "before the next round"}));
    }
  });
}

TEST_P(FixedCollectives, AnAllGatherReturnsTheValuesOfAllMembers) {
  using Ranks = std::map<std::string, std::size_t>;
  using Lists = std::map<std::string, std::vector<std::string>>;
  on_each(4, [&](std::size_t rank) {
    EXPECT_EQ(got(rpc::Job(job[rank]).all_gather(rank)),
              (Ranks{{"worker0", 0}, {"worker1", 1}, {"worker2", 2}, {"worker3", 3}}));
    EXPECT_EQ(
        got(rpc::Job(job[rank]).all_gather(std::vector<std::string>(rank, "x"))),
        (Lists{{"worker0", {}}, {"worker1", {"x"}}, {"worker2", {"x", "x"}}, {"worker3", {"x", "x", "x"}}}));
    const auto ids = got(rpc::Job(job[rank]).all_gather(job[rank].id()));
    ASSERT_EQ(ids.size(), 4U);
    for (const auto& [name, id] : ids) EXPECT_EQ(id, job[name].id());
  });
}

TEST(CollectivesWithoutConnections, CompleteAlthoughConnectionsAreLost) {
  constexpr std::size_t agents = 3;
  test::Job job(test::job_kind<test::TcpJobStore>("tcp"), agents);
  job.start_all([](AgentOptions& options) { options.same_host = false; });
  constexpr std::int64_t rounds = 30;
  for (std::int64_t round = 0; round < rounds; ++round) {
    std::vector<Future<std::map<std::string, std::int64_t>>> gathered;
    for (std::size_t rank = 0; rank < agents; ++rank) {
      gathered.push_back(rpc::Job(job[rank]).all_gather(10 * round + static_cast<std::int64_t>(rank)));
      test::lose_connections(job[rank]);
    }
    const std::map<std::string, std::int64_t> all{
        {"worker0", 10 * round}, {"worker1", 10 * round + 1}, {"worker2", 10 * round + 2}};
    for (auto& values : gathered) EXPECT_EQ(got(std::move(values)), all);
  }
  EXPECT_GE(job[0].counts().connections_made, 2 * agents) << "some were lost";
  for (std::size_t rank = 0; rank < agents; ++rank) EXPECT_EQ(job[rank].core()->job_error(), std::nullopt);
}

TEST_P(FixedCollectives, DisjointSubsetsRunCollectivesConcurrently) {
  std::atomic<std::size_t> came[2] = {};
  on_each(4, [&](std::size_t rank) {
    const std::size_t half = rank % 2;
    const CollectiveOptions own{.among = half == 0 ? std::vector<std::string>{"worker0", "worker2"}
                                                   : std::vector<std::string>{"worker3", "worker1"}};
    for (std::size_t round = 1; round <= 10; ++round) {
      ++came[half];
      const auto values = got(rpc::Job(job[rank]).all_gather(round, own));
      EXPECT_EQ(values, half == 0
                            ? (std::map<std::string, std::size_t>{{"worker0", round}, {"worker2", round}})
                            : (std::map<std::string, std::size_t>{{"worker1", round}, {"worker3", round}}));
      EXPECT_GE(came[half], 2 * round);
      got(rpc::Job(job[rank]).barrier(own));
    }
  });
}

// The other members call no collective, or one of their own.
TEST_P(FixedCollectives, ASubsetDoesNotWaitForOtherMembers) {
  const CollectiveOptions two{.among = {"worker1", "worker2"}};
  auto first = rpc::Job(job[1]).barrier(two);
  got(rpc::Job(job[3]).barrier({.among = {"worker3"}}));
  EXPECT_FALSE(first.ready());
  got(rpc::Job(job[2]).barrier(two));
  got(std::move(first));
}

TEST_P(FixedCollectives, SeveralThreadsOfAMemberRunCollectivesConcurrently) {
  constexpr std::size_t threads = 3, rounds = 5;
  std::atomic<std::size_t> passed{0};
  on_each(4, [&](std::size_t rank) {
    on_each(threads, [&](std::size_t thread) {
      for (std::size_t round = 0; round < rounds; ++round) {
        // several threads use one name, so any of them may be in the same round
        got(rpc::Job(job[rank]).barrier());
        ++passed;
        const auto values = got(rpc::Job(job[rank]).all_gather(10 * thread + round,
                                                               {.name = "thread " + std::to_string(thread)}));
        ASSERT_EQ(values.size(), 4U);
        for (const auto& [name, value] : values) EXPECT_EQ(value, 10 * thread + round) << name;
      }
    });
  });
  EXPECT_EQ(passed, 4 * threads * rounds);
}

TEST_P(FixedCollectives, ADeadlineFailsAllMembersAndNamesTheMissingOnes) {
  const std::string late = "all_gather 'step': 'worker2' did not call it before the deadline";
  on_each(4, [&](std::size_t rank) {
    // Only rank 3 has a short timeout.
    if (rank != 2)
      expect_error(rpc::Job(job[rank]).all_gather(1, {.name = "step", .timeout = rank == 3 ? 100ms : 1h}),
                   ErrorKind::deadline_exceeded, late);
  });
  expect_error(rpc::Job(job[2]).all_gather(1, {.name = "step"}), ErrorKind::deadline_exceeded, late);
  // The error applied to this round only. The job continues.
  on_each(4, [&](std::size_t rank) {
    EXPECT_EQ(got(rpc::Job(job[rank]).all_gather(2, {.name = "step"})).size(), 4U);
  });
}

TEST_P(FixedCollectives, ALostMemberFailsTheCollectiveAndTheWorld) {
  std::vector<Future<void>> waits;
  for (const std::size_t rank : {0, 1, 3}) waits.push_back(rpc::Job(job[rank]).barrier());
  job.end(2);
  for (auto& wait : waits) expect_error(std::move(wait), ErrorKind::peer_lost, "worker2 was lost");
  expect_error(rpc::Job(job[1]).barrier(), ErrorKind::peer_lost, "worker2 was lost");
}

TEST_P(FixedCollectives, ALostLeaderFailsTheCollectiveAndTheWorld) {
  const CollectiveOptions three{.among = {"worker1", "worker2", "worker3"}};
  auto second = rpc::Job(job[2]).barrier(three), third = rpc::Job(job[3]).barrier(three);
  // The leader has received both arrivals once it has replied to calls that were sent after them.
  for (const std::size_t rank : {2, 3}) got(rpc::Job(job[rank]).peer(1).call<&test::Worker::who>());
  job.end(1);
  expect_error(std::move(second), ErrorKind::peer_lost, "worker1");
  expect_error(std::move(third), ErrorKind::peer_lost, "worker1");
  eventually("the world has failed", [&] { return job[2].core()->job_error().has_value(); });
}

TEST_P(FixedCollectives, AMemberThatCancelsAbortsTheCollectiveOfTheOthers) {
  std::vector<Future<void>> waits;
  for (const std::size_t rank : {0, 1, 2}) waits.push_back(rpc::Job(job[rank]).barrier());
  waits[1].cancel();
  expect_error(std::move(waits[1]), ErrorKind::cancelled, "");
  for (const std::size_t i : {0, 2})
    expect_error(std::move(waits[i]), ErrorKind::aborted, "barrier: 'worker1' no longer waits");
  expect_error(rpc::Job(job[3]).barrier(), ErrorKind::aborted, "barrier: 'worker1' no longer waits");
}

TEST_P(FixedCollectives, AMemberThatLeavesFailsTheCollectiveOfTheOthers) {
  auto host = rpc::Job(job[0]).barrier({.name = "with"}), own = rpc::Job(job[3]).barrier({.name = "with"});
  auto without = rpc::Job(job[1]).barrier({.name = "without"});
  got(job[3].leave());  // a pending collective does not delay it
  expect_error(std::move(own), ErrorKind::failed_precondition, "has left its job");
  EXPECT_TRUE(test::error_of([&] { return got(std::move(host)), 0; }));
  expect_error(std::move(without), ErrorKind::shut_down, "barrier 'without': 'worker3' has left the job");
  eventually("the others know of it", [&] {
    return kind_of([&] { return got(rpc::Job(job[1]).barrier({.name = "later"})), 0; }) ==
           ErrorKind::shut_down;
  });
  EXPECT_EQ(job[1].core()->job_error(), std::nullopt);
}

TEST_P(FixedCollectives, TypesMustAgree) {
  auto number = rpc::Job(job[1]).all_gather(1);
  auto text = rpc::Job(job[2]).all_gather(std::string("one"));
  expect_error(std::move(number), ErrorKind::type_mismatch, " calls all_gather of ");
  expect_error(std::move(text), ErrorKind::type_mismatch, " calls all_gather of ");
}

TEST_P(FixedCollectives, InvalidSetsOfMembersAreRefusedAtOnce) {
  expect_error(rpc::Job(job[1]).barrier({.among = {"worker0", "worker2"}}), ErrorKind::invalid_argument,
               "'worker1' is not in CollectiveOptions::among");
  expect_error(rpc::Job(job[1]).barrier({.among = {"worker1", "worker9"}}), ErrorKind::not_found,
               "'worker9' is not a known member");
  // The refused call did not count as a round.
  on_each(4, [&](std::size_t rank) { got(rpc::Job(job[rank]).barrier()); });
}

// --- An elastic world ---

class OpenCollectives : public testing::TestWithParam<JobKind> {
 protected:
  OpenCollectives() {
    got(rpc::Job(job.start(0)).wait_for(1));
    for (const char* name : {"anna", "bert", "carl"}) start(name);
    for (const char* name : {"worker0", "anna", "bert", "carl"}) got(rpc::Job(job[name]).wait_for(4));
  }
  // Its lease alone proves its death, because no member has a connection to it.
  Agent& start(const std::string& name) {
    Agent& agent = job.start(no_rank, name, [this](MemberOptions& options) {
      if (!job.store().with_host) options.rendezvous.lease = test::short_lease;
    });
    got(rpc::Job(agent).wait_for(2));
    return agent;
  }
  Future<void> barrier(const std::string& name) { return rpc::Job(job[name]).barrier(three); }

  Job job{GetParam()};
  const CollectiveOptions three{.among = {"anna", "bert", "carl"}};
};
INSTANTIATE_TEST_SUITE_P(Stores, OpenCollectives, testing::ValuesIn(kinds), name_of);

TEST_P(OpenCollectives, TheNamedMembersRunTheCollective) {
  for (std::size_t round = 0; round < 3; ++round) {
    auto anna = rpc::Job(job["anna"]).all_gather(round, three),
         bert = rpc::Job(job["bert"]).all_gather(round, three);
    EXPECT_EQ(got(rpc::Job(job["carl"]).all_gather(round, three)),
              (std::map<std::string, std::size_t>{{"anna", round}, {"bert", round}, {"carl", round}}));
    got(std::move(anna));
    got(std::move(bert));
  }
  expect_error(rpc::Job(job["anna"]).barrier(), ErrorKind::invalid_argument,
               "CollectiveOptions::among is empty");
  got(rpc::Job(job["worker0"]).barrier({.among = {"worker0"}}));
}

TEST_P(OpenCollectives, AMemberThatDiesBeforeItsCallFailsTheOthers) {
  auto anna = barrier("anna"), bert = barrier("bert");
  job.end("carl");
  expect_error(std::move(anna), ErrorKind::peer_lost, "'carl' was lost");
  expect_error(std::move(bert), ErrorKind::peer_lost, "'carl' was lost");
}

TEST_P(OpenCollectives, AMemberThatDiesAfterItsCallFailsTheOthers) {
  auto anna = barrier("anna"), carl = barrier("carl");
  job.end("carl");
  expect_error(std::move(anna), ErrorKind::peer_lost, "'carl' was lost");
  EXPECT_TRUE(test::error_of([&] { return got(std::move(carl)), 0; }));
  EXPECT_EQ(job["anna"].core()->job_error(), std::nullopt);
}

TEST_P(OpenCollectives, TheDeathOfTheLeaderFailsTheOthers) {
  auto bert = barrier("bert"), carl = barrier("carl");
  // The leader has received both arrivals once it has replied to calls that were sent after them.
  for (const char* name : {"bert", "carl"}) got(job[name].peer("anna").call<&test::Worker::who>());
  job.end("anna");
  expect_error(std::move(bert), ErrorKind::peer_lost, "barrier, led by 'anna'");
  expect_error(std::move(carl), ErrorKind::peer_lost, "barrier, led by 'anna'");
}

TEST_P(OpenCollectives, TheNextIncarnationRunsCollectivesWithTheOthers) {
  auto anna = barrier("anna"), bert = barrier("bert");
  job.end("carl");
  expect_error(std::move(anna), ErrorKind::peer_lost, "'carl' was lost");
  expect_error(std::move(bert), ErrorKind::peer_lost, "'carl' was lost");
  const AgentId carl = start("carl").id();
  for (const char* name : {"anna", "bert", "carl"})
    eventually("all know of it", [&] {
      const auto members = rpc::Job(job[name]).members();
      return std::any_of(members.begin(), members.end(),
                         [&](const Member& member) { return member.id() == carl; });
    });
  anna = barrier("anna"), bert = barrier("bert");
  got(barrier("carl"));
  got(std::move(anna));
  got(std::move(bert));
}

TEST_P(OpenCollectives, AMemberThatLeavesFailsTheOthers) {
  auto anna = barrier("anna"), bert = barrier("bert");
  got(job["carl"].leave());
  job.end("carl");
  expect_error(std::move(anna), ErrorKind::shut_down, "'carl' has left the job");
  expect_error(std::move(bert), ErrorKind::shut_down, "'carl' has left the job");
}

TEST_P(OpenCollectives, AMemberThatHasNotJoinedIsNotFound) {
  EXPECT_EQ(kind_of([&] { return got(rpc::Job(job["anna"]).barrier({.among = {"anna", "dora"}})), 0; }),
            ErrorKind::not_found);
  const auto late = job.make(no_rank, "late");
  expect_error(rpc::Job(*late).barrier({.among = {"late"}}), ErrorKind::failed_precondition,
               "has not joined its job");
}

// --- Messages that a leader accepts ---

TEST(CollectiveLeading, TheLeaderRefusesOtherAgentsThanTheMembers) {
  Job job(kinds[1], 3);
  job.start_all();
  detail::CollectiveArrival arrival{.among = {job[0].id(), job[1].id()}, .type = ""};
  const auto come = [&](Agent& from, Agent& to) {
    auto call = from.peer(to.name()).calls().make("weft.membership.arrive", 2);
    call.begin();
    Codec<detail::CollectiveArrival>::encode(call.message().argument(0), arrival);
    Codec<Buffer>::encode(call.message().argument(1), Buffer{});
    call.end();
    Promise<void> promise;
    auto future = promise.future();
    from.peer(to.name()).calls().start(
        std::move(call), [promise = std::move(promise)](Result<PendingCall::Reply> reply) mutable {
          promise.complete(reply.ok() ? Result<void>{} : Result<void>(reply.error()));
        });
    return future;
  };
  expect_error(come(job[2], job[0]), ErrorKind::permission_denied, "'worker2' is not a member of barrier");
  expect_error(come(job[0], job[1]), ErrorKind::invalid_argument, "'worker1' is not the leader of barrier");
  arrival.among = {job[0].id(), job[0].id()};
  expect_error(come(job[0], job[0]), ErrorKind::invalid_argument, "'worker0' is not the leader of barrier");
}

}  // namespace
}  // namespace weft::rpc::collectives_test
