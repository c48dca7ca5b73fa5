// RRefs in a job that agents have joined.
#include <weft/rpc/job/job.h>
#include <weft/rref/rref.h>
#include <weft/rref/rref_layer.h>

#include "tests/rref/rref_support.h"
#include "tests/support/job.h"

namespace weft::rref::job_test {
namespace {

// Its constructor waits.
struct Slow : Counted {
  Slow() {
    begun->set();
    may_end->wait();
  }
  static inline test::Event *begun = nullptr, *may_end = nullptr;
  using Service = rpc::Service<"slow", rpc::Constructor<>>;
};

std::unique_ptr<rpc::Agent> member(const std::shared_ptr<rpc::InProcess>& network, std::size_t rank,
                                   std::vector<std::string>& log, std::size_t world_size) {
  rpc::MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 2}};
  options.listen = {rank == 0 ? "inproc://host" : "inproc://" + options.name};
  options.in_process = network;
  options.rendezvous = {.store = "inproc://host", .rank = rank, .world_size = world_size};
  auto mutex = std::make_shared<std::mutex>();
  options.log = [&log, mutex](const rpc::LogRecord& record) {
    std::lock_guard lock(*mutex);
    log.emplace_back(record.message);
  };
  auto agent = test::make_member(options, layers());
  agent->serve(std::make_shared<Keeper>(*agent));
  agent->allow_create<Slow>();
  agent->allow_create<Box>();
  return agent;
}

// The members of a job, which have met.
struct Members {
  explicit Members(std::size_t count) : logs(count) {
    const auto network = std::make_shared<rpc::InProcess>();
    for (std::size_t rank = 0; rank < count; ++rank)
      agents.push_back(member(network, rank, logs[rank], count));
    std::vector<rpc::Future<void>> met;
    for (const auto& agent : agents) met.push_back(rpc::Job(*agent).wait_for(count));
    for (auto& one : met) got(std::move(one));
  }
  ~Members() {
    while (!agents.empty()) agents.pop_back();
  }
  void expect_no_leak(std::size_t rank) {
    for (const auto& line : logs[rank]) EXPECT_EQ(line.find("leak"), std::string::npos) << line;
  }
  std::vector<std::vector<std::string>> logs;
  std::vector<std::unique_ptr<rpc::Agent>> agents;
};

// A member releases its references before it leaves, so an owner that shuts down later reports no leak.
TEST(RRefJob, LeaveReportsAllReleases) {
  test::Event begun, may_end;
  Slow::begun = &begun;
  Slow::may_end = &may_end;
  Members members(2);
  auto &owner = members.agents[0], &user = members.agents[1];
  {
    const auto slow = create<Slow>(user->peer("worker0"));
  }
  begun.wait();
  auto left = user->leave();
  for (int i = 0; i < 20; ++i) got(user->peer("worker0").call<&Keeper::ping>());
  EXPECT_EQ(rpc::Job(*owner).members().size(), 2U) << "the owner would end now";
  may_end.set();
  got(std::move(left));
  rpc::Job(*owner).serve_until_shutdown();
  EXPECT_TRUE(RRefLayer::of(*owner->core())->live_objects().empty());
  user = nullptr;
  owner = nullptr;
  members.expect_no_leak(0);
}

// The handles are destroyed after the agent has left, as in a plain main().
TEST(RRefJob, LeaveReleasesTheReferencesOfTheAgent) {
  Members members(2);
  auto &owner = members.agents[0], &user = members.agents[1];
  const auto box = create<Box>(user->peer("worker0"), 1);
  const auto copy = box;
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
  got(user->leave());
  rpc::Job(*owner).serve_until_shutdown();
  got(owner->drain(test::too_long));  // the served call holds its object until shortly after its answer
  EXPECT_TRUE(RRefLayer::of(*owner->core())->live_objects().empty());
  EXPECT_EQ(kind_of([&] { got(copy.call<&Box::get>()); }), rpc::ErrorKind::shut_down);
  owner = nullptr;
  members.expect_no_leak(0);
}

// A holder that keeps the job's store ends last. It releases its references before their owners end.
TEST(RRefJob, AServingHolderReleasesItsReferencesBeforeTheOwnerEnds) {
  for (int round = 0; round < 5; ++round) {
    Members members(2);
    auto &holder = members.agents[0], &owner = members.agents[1];
    const auto box = create<Box>(holder->peer("worker1"), 1);
    EXPECT_EQ(got(box.call<&Box::get>()), 1);
    std::thread serves([&] {
      rpc::Job(*owner).serve_until_shutdown(test::too_long);
      EXPECT_TRUE(RRefLayer::of(*owner->core())->live_objects().empty());
      owner = nullptr;
    });
    rpc::Job(*holder).serve_until_shutdown(test::too_long);
    serves.join();
    EXPECT_EQ(kind_of([&] { got(box.call<&Box::get>()); }), rpc::ErrorKind::shut_down);
    members.expect_no_leak(1);
  }
}

// Owners in a failed job shut down too. An error names the member that caused the failure, not such an owner.
TEST(RRefJob, AnErrorNamesTheDeadMemberAndNotAnOwnerThatShutDown) {
  Members members(3);
  auto& agents = members.agents;
  const auto box = create<Box>(agents[2]->peer("worker0"), 1);
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
  agents[1] = nullptr;
  eventually("the survivor was told", [&] { return agents[2]->core()->job_error().has_value(); });
  agents[0] = nullptr;
  for (const std::string& line : members.logs[0])
    EXPECT_EQ(line.find("is still held by"), std::string::npos) << "no leak of a job that failed: " << line;
  eventually("the owner is gone", [&] { return agents[2]->core()->counts().connections == 0; });
  eventually("its RRefs know it", [&] { return !box.is_confirmed(); });
  const auto told = [](auto&& f) {
    const std::string text = test::message_of(f);
    EXPECT_TRUE(text.starts_with("worker1 was lost")) << text;
  };
  told([&] { got(box.call<&Box::get>()); });
  told([&] { got(box.ready()); });
  told([&] { create<Box>(agents[2]->peer("worker0"), 2); });
}

TEST(RRefJob, CallsAndRemoteAddressAPeerByRank) {
  const Members members(2);
  const auto& agents = members.agents;
  for (const auto& from : agents)
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const rpc::Peer peer = rpc::Job(*from).peer(rank);
      EXPECT_EQ(got(peer.call<&Keeper::sum>(2, 3)), 5);
      const RRef<std::int64_t> there = remote<&Keeper::sum>(peer, 4, 5);
      EXPECT_EQ(there.owner().name, agents[rank]->name());
      EXPECT_EQ(got(there.to_here()), 9);
    }
  EXPECT_EQ(kind_of([&] { return remote<&Keeper::sum>(rpc::Job(*agents[0]).peer(2), 4, 5).owner(); }),
            rpc::ErrorKind::not_found);
}

TEST(RRefJob, AJobOfOneAgentCallsItselfKeepsObjectsAndLeaves) {
  rpc::MemberOptions options{{.name = "worker0", .listen = {"inproc://host"}, .handler_threads = 2}};
  options.in_process = std::make_shared<rpc::InProcess>();
  options.rendezvous = {.store = "inproc://host", .rank = 0, .world_size = 1};
  options.log = [](const rpc::LogRecord&) {};
  Counted::alive = 0;
  {
    rpc::Job job(options, layers());
    rpc::Agent& agent = job.agent();
    agent.serve(std::make_shared<Keeper>(agent));
    agent.allow_create<Box>();
    got(job.wait_for(1));
    EXPECT_EQ(job.rank(), 0U);
    EXPECT_EQ(job.world_size(), 1U);
    EXPECT_EQ(job.members().size(), 1U);
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
