// Jobs of a fixed size, over each kind of store that needs no separate process. Elastic jobs are tested in
// tests/rpc/job/elastic_world_test.cc.
#include <weft/rpc/job/membership/job_membership.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/file_store.h>
#include <weft/rpc/job/store/remote_store.h>

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include <filesystem>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::membership_test {
namespace {

using namespace std::chrono_literals;

using namespace test;
using test::Job;

const JobKind tcp = test::job_kind<test::TcpJobStore>("tcp");
const JobKind in_process = test::job_kind<test::InProcessJobStore>("in_process");
const JobKind file = test::job_kind<test::FileJobStore>("file");

class MembershipTest : public testing::TestWithParam<JobKind> {};

INSTANTIATE_TEST_SUITE_P(Stores, MembershipTest, testing::Values(tcp, in_process, file),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(MembershipTest, AgentsJoinAndCallEachOtherByName) {
  Job job(GetParam(), 4);
  job.start_all();
  for (std::size_t from = 0; from < 4; ++from)
    for (std::size_t to = 0; to < 4; ++to)
      EXPECT_EQ(job[from].peer("worker" + std::to_string(to)).call<&Worker::who>().get(),
                "worker" + std::to_string(to));
  expect_error(job[1].peer("worker9").call<&Worker::who>(), ErrorKind::not_found, "worker9");
}

TEST_P(MembershipTest, APeerIsFoundByItsRank) {
  Job job(GetParam(), 3);
  job.start(0, "parameters");
  job.start(1, "trainer");
  expect_error(rpc::Job(job["trainer"]).wait_for(4), ErrorKind::invalid_argument, "a world of 3");
  const auto kind_of_rank = [&](const std::string& agent, std::size_t rank) {
    return test::kind_of([&] { return rpc::Job(job[agent]).peer(rank).name(); });
  };
  EXPECT_EQ(kind_of_rank("trainer", 0), ErrorKind::not_found);  // no rank is known yet
  auto two = rpc::Job(job["parameters"]).wait_for(2);
  rpc::Job(job["trainer"]).wait_for(2).get();
  two.get();
  EXPECT_EQ(kind_of_rank("trainer", 2), ErrorKind::not_found);  // will come
  rpc::Job(job.start(2, "other")).wait_for(3).get();
  for (const char* name : {"parameters", "trainer"}) rpc::Job(job[name]).wait_for(3).get();
  const std::string by_rank[] = {"parameters", "trainer", "other"};
  for (const auto& from : by_rank)
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(rpc::Job(job[from]).peer(rank).call<&Worker::who>().get(), by_rank[rank]);
      EXPECT_EQ(rpc::Job(job[from]).peer(rank).ready().get(), job[by_rank[rank]].id());
    }
  EXPECT_EQ(kind_of_rank("trainer", 3), ErrorKind::not_found);
  EXPECT_EQ(kind_of_rank("trainer", Rendezvous::no_rank), ErrorKind::not_found);
}

TEST_P(MembershipTest, AgentsStartInAnyOrder) {
  Job job(GetParam(), 3);
  auto late = rpc::Job(job.start(2)).wait_for(3);
  auto middle = rpc::Job(job.start(1)).wait_for(2);
  EXPECT_FALSE(late.ready());
  auto host = rpc::Job(job.start(0)).wait_for(3);
  late.get();
  middle.get();
  host.get();
}

TEST_P(MembershipTest, AMemberThatLeavesIsNotLost) {
  Job job(GetParam(), 4);
  job.start_all();
  std::thread server([&] { rpc::Job(job[0]).serve_until_shutdown(); });
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(job[rank].peer("worker0").call<&Worker::who>().get(), "worker0");
    job[rank].leave().get();
    job.end(rank);
  }
  server.join();
  EXPECT_EQ(job[0].core()->job_error(), std::nullopt);
  if (!job.store().with_host) {
    EXPECT_FALSE(std::filesystem::exists(job.store().path));
  }
  expect_error(rpc::Job(job[0]).wait_for(4), ErrorKind::failed_precondition, "left");
}

TEST_P(MembershipTest, MembersThatOnlyServeDoNotWaitForEachOther) {
  Job job(GetParam(), 4);
  job.start_all();
  std::vector<std::thread> servers;
  for (std::size_t rank = 0; rank < 3; ++rank)
    servers.emplace_back([&, rank] { rpc::Job(job[rank]).serve_until_shutdown(); });
  job[3].leave().get();
  for (auto& server : servers) server.join();
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(job[rank].core()->job_error(), std::nullopt) << rank;
}

TEST_P(MembershipTest, TheWaitForTheOthersAtShutdownTimesOut) {
  Job job(GetParam(), 3);
  auto host = rpc::Job(job.start(0)).wait_for(1);
  host.get();
  const auto ends = [&](std::chrono::nanoseconds timeout) {
    return test::message_of([&] { return rpc::Job(job[0]).serve_until_shutdown(timeout); });
  };
  EXPECT_EQ(ends(1ms), "other members have not left before the deadline: 2 that never joined");
  for (const std::size_t rank : {1, 2}) rpc::Job(job.start(rank)).wait_for(rank + 1).get();
  rpc::Job(job[0]).wait_for(3).get();
  EXPECT_EQ(ends(1ms), "other members have not left before the deadline: 'worker1', 'worker2'");
  job[1].leave().get();
  test::eventually("worker1 has left", [&] { return rpc::Job(job[0]).members().size() == 2; });
  expect_error([&] { return rpc::Job(job[0]).serve_until_shutdown(1ms); }, ErrorKind::deadline_exceeded,
               whole("other members have not left before the deadline: 'worker2'"));
  EXPECT_EQ(job[2].peer("worker0").call<&Worker::who>().get(), "worker0");  // worker2 is still a member
  std::thread last([&] { job[2].leave().get(); });
  rpc::Job(job[0]).serve_until_shutdown(test::too_long);
  last.join();
}

TEST_P(MembershipTest, EveryMemberLearnsTheLostMember) {
  Job job(GetParam(), 4);
  job.start_all();
  struct Survivor {
    std::string name;
    Future<int> to_lost, to_survivor;
    std::thread server;
  };
  std::vector<Survivor> survivors;
  for (const std::size_t rank : {0, 1, 3}) {
    Survivor survivor{"worker" + std::to_string(rank), {}, {}, {}};
    survivor.to_lost = job[rank].peer("worker2").call<&Worker::hang>();
    survivor.to_survivor = job[rank].peer(rank == 3 ? "worker1" : "worker3").call<&Worker::hang>();
    survivor.server = std::thread([&job, rank] {
      expect_error([&] { rpc::Job(job[rank]).serve_until_shutdown(); }, ErrorKind::peer_lost,
                   "worker2 was lost: ");
    });
    survivors.push_back(std::move(survivor));
  }
  job.worker(2).await_calls(3);
  job.worker(3).await_calls(2);
  job.worker(1).await_calls(1);
  job.end(2);
  for (auto& [name, to_lost, to_survivor, server] : survivors) {
    expect_error(std::move(to_lost), ErrorKind::peer_lost, "worker2", name);
    expect_error(std::move(to_survivor), ErrorKind::peer_lost, "worker2 was lost", name);
    server.join();
    // Later operations fail with the same error.
    Agent& agent = job[static_cast<std::size_t>(name.back() - '0')];
    expect_error(agent.peer("worker0").call<&Worker::who>(), ErrorKind::peer_lost, "worker2 was lost", name);
    expect_error(rpc::Job(agent).wait_for(4), ErrorKind::peer_lost, "worker2 was lost", name);
    expect_error(agent.leave(), ErrorKind::peer_lost, "worker2 was lost", name);
  }
}

TEST_P(MembershipTest, EveryMemberLearnsThatTheHostWasLost) {
  Job job(GetParam(), 3);
  job.start_all();
  auto pending = job[1].peer("worker2").call<&Worker::hang>();
  job.worker(2).await_calls(1);
  std::thread server([&] {
    expect_error([&] { rpc::Job(job[2]).serve_until_shutdown(); }, ErrorKind::peer_lost,
                 "worker0 was lost: ");
  });
  job.end(0);
  expect_error(std::move(pending), ErrorKind::peer_lost, "worker0 was lost");
  server.join();
  expect_error(job[2].peer("worker1").call<&Worker::who>(), ErrorKind::peer_lost, "worker0 was lost");
}

Task<int> call_twice(Peer peer) {
  co_await peer.call<&Worker::who>();
  co_return co_await peer.call<&Worker::hang>();
}

TEST_P(MembershipTest, AMemberThatIsSilentForItsLeaseIsLost) {
  Job job(GetParam(), 3);
  job.start(0);
  job.start(1);
  job.start(2, "", [](MemberOptions& options) { options.rendezvous.lease = test::short_lease; });
  std::vector<Future<void>> waits;
  for (std::size_t rank = 0; rank < 3; ++rank) waits.push_back(rpc::Job(job[rank]).wait_for(3));
  for (auto& wait : waits) wait.get();
  auto to_survivor = job[0].peer("worker1").call<&Worker::hang>();
  job.worker(1).await_calls(1);
  test::HeldLoop held(job[2]);  // its connections stay open
  expect_error(std::move(to_survivor), ErrorKind::peer_lost, "worker2 was lost: its lease has expired");
  test::eventually("worker1 knows it too", [&] { return job[1].core()->job_error().has_value(); });
  held.release();
  test::eventually("and so does who was lost", [&] { return job[2].core()->job_error().has_value(); });
}

TEST_P(MembershipTest, ATaskFailsWithTheWorld) {
  Job job(GetParam(), 3);
  job.start_all();
  std::thread loss([&] {
    job.worker(0).await_calls(1);
    job.end(2);
  });
  expect_error([&] { job[1].run(call_twice(job[1].peer("worker0"))); }, ErrorKind::peer_lost,
               "worker2 was lost");
  loss.join();
}

TEST_P(MembershipTest, ALossBeforeAllHaveJoinedReachesWaitingMembers) {
  Job job(GetParam(), 4);
  std::vector<Future<void>> waits;
  for (std::size_t rank = 0; rank < 3; ++rank) waits.push_back(rpc::Job(job.start(rank)).wait_for(4));
  std::vector<Future<void>> three;
  for (std::size_t rank = 0; rank < 3; ++rank) three.push_back(rpc::Job(job[rank]).wait_for(3));
  for (auto& wait : three) wait.get();
  job.end(2);
  expect_error(std::move(waits[2]), ErrorKind::shut_down, "shut down", "worker2");
  for (std::size_t rank = 0; rank < 2; ++rank)
    expect_error(std::move(waits[rank]), ErrorKind::peer_lost, "worker2 was lost",
                 "worker" + std::to_string(rank));
  // A member that starts later fails in the same way.
  expect_error(rpc::Job(job.start(3)).wait_for(4), ErrorKind::peer_lost, "worker2 was lost", "worker3");
}

TEST_P(MembershipTest, AWaitForMembersThatDoNotJoinIsCancellable) {
  Job job(GetParam(), 4);
  rpc::Job(job.start(0)).wait_for(1).get();
  auto wait = rpc::Job(job.start(1)).wait_for(3);
  rpc::Job(job[1]).wait_for(2).get();
  EXPECT_FALSE(wait.ready());
  wait.cancel();
  wait.cancel();
  expect_error(std::move(wait), ErrorKind::cancelled, "cancelled");
  expect_error(rpc::Job(job[1]).wait_for(5), ErrorKind::invalid_argument,
               "wait_for: a world of 4 cannot have 5 agents");
  EXPECT_EQ(job[1].peer("worker0").call<&Worker::who>().get(), "worker0");  // still a member
  job[1].leave().get();  // no operation is left in flight that would block the drain
}

TEST_P(MembershipTest, ACancelledShutdownIsRevoked) {
  Job job(GetParam(), 2);
  auto host = rpc::Job(job.start(0)).wait_for(2);
  const MemberOptions options = job.options(1, "worker1");
  auto core = std::make_shared<AgentCore>(options, nullptr);
  auto membership = detail::JobMembership::install(core, options.rendezvous);
  core->listen();
  membership->wait_for(2).get();
  host.get();
  auto end = membership->others_left(no_timeout);
  EXPECT_FALSE(end.ready());
  end.cancel();
  expect_error(std::move(end), ErrorKind::cancelled, "cancelled");
  membership->wait_for(2).get();  // still a member
  end = membership->others_left(no_timeout);
  job[0].leave().get();
  if (!job.store().with_host) {
    end.get();  // the store exists without the host
  } else {
    // the agent either saw the host leave, or only lost the store
    (void)test::error_of([&] { return end.get(), 0; });
  }
  membership->leave().get();
  EXPECT_EQ(core->job_error(), std::nullopt);
  membership->shut_down();
  core->shut_down();
}

TEST_P(MembershipTest, ShutDownFailsWaits) {
  Job job(GetParam(), 3);
  auto host = rpc::Job(job.start(0)).wait_for(3);
  rpc::Job joiner(job.start(1));
  auto joining = joiner.wait_for(3);
  job[1].shut_down();
  expect_error(std::move(joining), ErrorKind::shut_down, "shut down");
  expect_error(joiner.wait_for(3), ErrorKind::shut_down, "shut down");
  job[0].shut_down();
  EXPECT_TRUE(test::error_of([&] { return host.get(), 0; }));
}

TEST_P(MembershipTest, AnAgentThatNeverJoinsMayShutDown) {
  Job job(GetParam(), 2);
  auto wait = rpc::Job(job.start(1)).wait_for(2);  // there is no host
  wait.cancel();
  expect_error(std::move(wait), ErrorKind::cancelled, "cancelled");
  job[1].leave().get();
}

TEST_P(MembershipTest, NoMemberJoinsAFixedWorldTwice) {
  Job job(GetParam(), 3);
  job.start_all();
  auto twin = job.make(1, "worker1");
  expect_error(rpc::Job(*twin).wait_for(3), ErrorKind::already_exists,
               "'worker1' has joined this job already");
  twin.reset();
  // the loss of the twin is not a loss of the member
  EXPECT_EQ(job[2].peer("worker1").call<&Worker::who>().get(), "worker1");
  auto rival = job.make(1, "rival");
  expect_error(rpc::Job(*rival).wait_for(3), ErrorKind::already_exists,
               "rank 1 of this job is taken by 'worker1'");
  rival.reset();
  job[1].leave().get();
  job.end(1);
  auto again = job.make(1, "worker1");
  expect_error(rpc::Job(*again).wait_for(3), ErrorKind::already_exists, "has left");
  again.reset();
  job[2].peer("worker0").call<&Worker::who>().get();
  for (const std::size_t rank : {0, 2}) EXPECT_EQ(job[rank].core()->job_error(), std::nullopt);
}

TEST_P(MembershipTest, FixedAndElasticMembersAreNotMixed) {
  const auto open = [](MemberOptions& options) {
    options.rendezvous.fixed_world = false;
    options.rendezvous.world_size = 0;
    options.rendezvous.rank = Rendezvous::no_rank;
  };
  const auto larger = [](MemberOptions& options) { options.rendezvous.world_size = 5; };
  {
    Job job(GetParam(), 2);
    job.start_all();
    expect_error(rpc::Job(*job.make(1, "visitor", open)).wait_for(1), ErrorKind::failed_precondition,
                 "this job is a fixed world (2), and 'visitor' tried to join an elastic world");
    expect_error(rpc::Job(*job.make(1, "visitor", larger)).wait_for(1), ErrorKind::failed_precondition,
                 "this job is a fixed world (2), and 'visitor' tried to join a fixed world (5)");
    EXPECT_EQ(job[0].peer("worker1").call<&Worker::who>().get(), "worker1");  // no loss
    EXPECT_EQ(rpc::Job(job[0]).members().size(), 2U);
    for (const std::size_t rank : {0, 1}) EXPECT_EQ(job[rank].core()->job_error(), std::nullopt);
  }
  Job job(GetParam());
  rpc::Job(job.start(0)).wait_for(1).get();
  const auto fixed = [](MemberOptions& options) {
    options.rendezvous.fixed_world = true;
    options.rendezvous.world_size = 2;
  };
  expect_error(rpc::Job(*job.make(1, "visitor", fixed)).wait_for(1), ErrorKind::failed_precondition,
               "this job is an elastic world, and 'visitor' tried to join a fixed world (2)");
  rpc::Job(job.start(Rendezvous::no_rank, "visitor")).wait_for(2).get();
  EXPECT_EQ(test::kind_of([&] { return rpc::Job(job[0]).peer(0).name(); }), ErrorKind::failed_precondition);
}

TEST(Membership, ListsTheNamesAndRanksOfAll) {
  Job job(in_process, 4);
  job.start_all();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::map<std::string, std::optional<std::size_t>> ranks;
    for (const Member& member : rpc::Job(job[rank]).members()) {
      ranks[member.name] = member.rank;
      EXPECT_EQ(member.id(), job[member.name].id());
      EXPECT_EQ(member.addresses, job[member.name].addresses());
    }
    EXPECT_EQ(ranks, (std::map<std::string, std::optional<std::size_t>>{
                         {"worker0", 0}, {"worker1", 1}, {"worker2", 2}, {"worker3", 3}}))
        << rank;
  }
}

// The ranks of a later job at the same address, before those of the first job have joined.
TEST(Membership, ARankOfAnotherJobDoesNotTakePart) {
  Job job(tcp, 2);
  const auto of = [](const char* id) {
    return [id](MemberOptions& options) { options.rendezvous.metadata["weft.job"] = id; };
  };
  job.start(0, "", of("first"));
  expect_error(rpc::Job(*job.make(1, "worker1", of("second"))).wait_for(2), ErrorKind::failed_precondition,
               "is that of job 'first', and 'worker1' is a member of job 'second'");
  auto host = rpc::Job(job[0]).wait_for(2);
  test::got(rpc::Job(job.start(1, "", of("first"))).wait_for(2));
  test::got(std::move(host));
}

// --- Behaviour that depends on which agent keeps the store ---

std::shared_ptr<RemoteStore> store_of(Agent& client, Agent& host) {
  return std::make_shared<RemoteStore>(client.connect(host.addresses().front()));
}

TEST(Membership, TheEndOfANonMemberIsNotALoss) {
  Job job(tcp, 2);
  job.start_all();
  {
    Agent stranger(AgentOptions{.name = "stranger"});
    EXPECT_EQ(stranger.connect(job[0].addresses().front()).call<&Worker::who>().get(), "worker0");
  }
  EXPECT_EQ(job[1].peer("worker0").call<&Worker::who>().get(), "worker0");
  EXPECT_EQ(job[0].core()->job_error(), std::nullopt);
}

TEST(Membership, AMemberThatDiesWhileJoiningIsLost) {
  Job job(tcp, 3);
  auto host = rpc::Job(job.start(0)).wait_for(3);
  auto member = rpc::Job(job.start(1)).wait_for(3);
  rpc::Job(job[1]).wait_for(2).get();
  {
    // The joiner claims a name and does not continue.
    Agent joiner(AgentOptions{.name = "worker2"});
    MemberRecord record;
    record.name = "worker2";
    record.incarnation = joiner.id().incarnation;
    record.rank = 2;
    store_of(joiner, job[0])->set("members/worker2", to_text(record)).get();
  }
  expect_error(std::move(host), ErrorKind::peer_lost, "worker2 was lost");
  expect_error(std::move(member), ErrorKind::peer_lost, "worker2 was lost");
}

TEST(Membership, OnlyTheHostMayReportALoss) {
  Job job(tcp, 2);
  job.start_all();
  Agent liar(AgentOptions{.name = "liar"});
  auto peer = liar.connect(job[1].addresses().front());
  auto call = peer.calls().make("weft.membership.lost", 2);
  // The test calls the method by name, as a program in another language would.
  call.begin();
  Codec<std::string>::encode(call.message().argument(0), "worker0");
  Codec<std::string>::encode(call.message().argument(1), "because");
  call.end();
  Promise<void> promise;
  auto future = promise.future();
  peer.calls().start(std::move(call),
                     [promise = std::move(promise)](Result<PendingCall::Reply> reply) mutable {
                       promise.complete(decode_reply<void>(std::move(reply), "lost"));
                     });
  expect_error(std::move(future), ErrorKind::permission_denied, "'liar' is not the host of this job");
  EXPECT_EQ(job[1].core()->job_error(), std::nullopt);
}

// A member that does not answer delays the end of the job by a second. Another member that shuts down during
// this time, because it knows of the loss, is not the cause.
TEST(Membership, CallsOfTheHostNameTheFirstLossWhileItNotifiesTheOthers) {
  Job job(tcp, 4);
  for (std::size_t rank = 0; rank < 3; ++rank) job.start(rank);
  asio::io_context io;
  auto work = asio::make_work_guard(io);
  const MemberOptions options = job.options(3, "worker3");
  Agent mute(io, options, {rpc::Job::layer(options.rendezvous)});
  std::thread loop([&] { io.run(); });
  std::vector<Future<void>> waits;
  for (std::size_t rank = 0; rank < 3; ++rank) waits.push_back(rpc::Job(job[rank]).wait_for(4));
  rpc::Job(mute).wait_for(4).get();
  for (auto& wait : waits) wait.get();
  io.stop();
  loop.join();
  auto hanging = job[0].peer("worker1").call<&Worker::hang>();
  job.worker(1).await_calls(1);
  job.end(2);
  eventually("worker1 has heard of it", [&] { return job[1].core()->job_error().has_value(); });
  job.end(1);
  expect_error(std::move(hanging), ErrorKind::peer_lost, "worker2 was lost");
}

// The other members may learn of the loss from this member first.
TEST(Membership, AMemberOfAFailedJobReportsTheCauseWhenItEnds) {
  for (const std::size_t first : {0, 1}) {
    Job job(tcp, 3);
    job.start_all();
    const std::size_t other = 1 - first;
    auto hanging = rpc::Job(job[other]).peer(first).call<&Worker::hang>();
    job.worker(first).await_calls(1);
    job[first].core()->fail_job(Error(ErrorKind::peer_lost, "worker2 was lost: for a test"));
    job.end(first);
    expect_error(std::move(hanging), ErrorKind::peer_lost, "worker2 was lost: for a test");
  }
}

TEST(Membership, ALossThatANonMemberReportsIsIgnored) {
  Job job(tcp, 2);
  job.start_all();
  {
    Agent liar(AgentOptions{.name = "liar"});
    liar.connect(job[1].addresses().front()).call<&Worker::who>().get();
    liar.core()->fail_job(Error(ErrorKind::peer_lost, "worker0 was lost: for a test"));
  }
  eventually("its end is noticed", [&] { return job[1].core()->counts().connections == 1; });
  EXPECT_EQ(job[1].core()->job_error(), std::nullopt);
}

TEST(Membership, WhenTheHostLeavesFirstTheOthersGetAnError) {
  Job job(tcp, 4);
  job.start_all();
  std::thread server([&] {
    expect_error(
        [&] { rpc::Job(job[1]).serve_until_shutdown(); }, ErrorKind::unavailable,
        whole("'worker0' keeps this job's store and has left before worker2, worker3: it should serve until "
              "the others have left"));
  });
  const Peer peer = job[2].peer("worker1");
  peer.call<&Worker::who>().get();
  // The server has registered the wait once it has replied to a later request.
  Agent watcher(AgentOptions{.name = "watcher"});
  auto store = store_of(watcher, job[0]);
  for (StoreView view = store->list("members/").get();
       Roster(view).find("worker1")->state != MemberState::serving;)
    store->watch("members/", view.version).get(), view = store->list("members/").get();
  job[0].leave().get();
  server.join();
  job.end(0);
  EXPECT_EQ(peer.call<&Worker::who>().get(), "worker1");  // the job continues
  for (std::size_t rank = 1; rank < 4; ++rank) job[rank].leave().get();
  for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_EQ(job[rank].core()->job_error(), std::nullopt);
}

TEST(Membership, AWildcardIsPublishedAsTheAddressOfTheRouteToTheStore) {
  Job job(tcp, 2);
  job.start(0);
  MemberOptions options = job.options(1, "worker1");
  options.listen = {"tcp://0.0.0.0:0"};
  options.insecure = true;
  rpc::Job worker(options);
  auto host = rpc::Job(job[0]).wait_for(2);
  worker.wait_for(2).get();
  host.get();
  const auto view = store_of(worker.agent(), job[0])->list("members/").get();
  const std::string port = worker.agent().addresses().front().substr(std::string("tcp://0.0.0.0:").size());
  EXPECT_EQ(Roster(view).find("worker1")->addresses, std::vector<std::string>{"tcp://127.0.0.1:" + port});
}

TEST(Membership, AFileOfAnEarlierJobIsRecognized) {
  Job job(file, 2);
  FileStore earlier(job.store().path);
  MemberRecord record;
  record.name = "worker0";
  record.incarnation = 17;
  record.state = MemberState::joined;
  earlier.set("members/worker0", to_text(record)).get();
  expect_error(rpc::Job(job.start(0)).wait_for(2), ErrorKind::already_exists,
               job.store().url + " is from an earlier job, remove it");
}

TEST(Membership, RefusesInvalidOptions) {
  Job job(tcp, 2);
  EXPECT_THROW(job.make(2, "worker2"), Error);
  MemberOptions deaf = job.options(0, "worker0");
  deaf.listen.clear();
  EXPECT_THROW(rpc::Job{deaf}, Error);
  MemberOptions wrong = job.options(1, "worker1");
  wrong.rendezvous.store = "file://relative";
  EXPECT_THROW(rpc::Job{wrong}, Error);
  Agent alone(AgentOptions{.name = "alone"});
  EXPECT_THROW(rpc::Job{alone}, Error);
}

}  // namespace
}  // namespace weft::rpc::membership_test
