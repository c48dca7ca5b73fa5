// The behaviour of elastic worlds with any store. INSTANTIATE_TEST_SUITE_P(Stores, ElasticWorld, …) runs the
// suite with the kinds of store.
#pragma once

#include <weft/rpc/endpoint/agent_core.h>

#include <thread>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::test {

// The events of a watch so far.
class History {
 public:
  explicit History(rpc::Agent& agent) : watch_(rpc::Job(agent).watch_members()) {}

  // Reads until the watch has reported this number of events.
  const std::vector<rpc::MemberEvent>& until(std::size_t events) {
    while (told_.size() < events)
      for (rpc::MemberEvent& event : got(watch_->next())) told_.push_back(std::move(event));
    return told_;
  }
  std::string text() const {
    std::string text;
    for (const auto& [change, member] : told_)
      text += (text.empty() ? "" : ", ") + member.name + " " + std::string(rpc::to_string(change));
    return text;
  }
  rpc::MemberWatch& watch() { return *watch_; }

 private:
  std::unique_ptr<rpc::MemberWatch> watch_;
  std::vector<rpc::MemberEvent> told_;
};

class ElasticWorld : public testing::TestWithParam<JobKind> {
 protected:
  static constexpr std::size_t no_rank = rpc::Rendezvous::no_rank;

  void SetUp() override {
    if (const char* missing = GetParam().missing(); *missing != '\0') GTEST_SKIP() << missing;
    job_ = std::make_unique<Job>(GetParam());
    got(rpc::Job(job_->start(0)).wait_for(1));
  }
  rpc::Agent& start(const std::string& name, const Job::Adjust& adjust = nullptr) {
    return job_->start(no_rank, name, adjust);
  }
  // An agent whose death its lease alone proves, because no member has a connection to it.
  rpc::Agent& start_mortal(const std::string& name) {
    return job_->store().with_host ? start(name) : start_short_lived(name);
  }
  rpc::Agent& start_short_lived(const std::string& name) {
    return start(name, [](rpc::MemberOptions& options) { options.rendezvous.lease = short_lease; });
  }
  rpc::Agent& agent(const std::string& name) { return (*job_)[name]; }
  rpc::Agent& host() { return agent("worker0"); }
  static std::string names(rpc::Agent& agent) {
    std::string names;
    for (const rpc::Member& member : rpc::Job(agent).members())
      names += (names.empty() ? "" : ", ") + member.name;
    return names;
  }

  std::unique_ptr<Job> job_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ElasticWorld);

TEST_P(ElasticWorld, WatchersAreNotifiedOfJoinsAndLeaves) {
  History seen(host());
  seen.until(1);
  got(rpc::Job(start("a", [](auto& options) {
        options.rendezvous.metadata = {{"gpu", "H200"}};
      })).wait_for(2));
  rpc::Agent& b = start("b");
  got(rpc::Job(b).wait_for(3));
  EXPECT_EQ(names(b), "a, b, worker0");
  EXPECT_EQ(got(b.peer("a").call<&Worker::who>()), "a");
  EXPECT_EQ(got(agent("a").peer("b").call<&Worker::who>()), "b");

  const rpc::AgentId was = agent("a").id();
  const rpc::Member a = seen.until(3)[1].member;
  EXPECT_EQ(a.id(), was);
  EXPECT_EQ(a.rank, std::nullopt);
  EXPECT_EQ(a.addresses, agent("a").addresses());
  EXPECT_EQ(a.metadata, (std::map<std::string, std::string>{{"gpu", "H200"}}));

  got(agent("a").leave());
  job_->end("a");
  EXPECT_EQ(seen.until(4).back().member.id(), was);
  eventually("a has left", [&] { return names(b) == "b, worker0"; });
  eventually("its name leads nowhere", [&] {
    return kind_of([&] { return got(b.peer("a").call<&Worker::who>()); }) == rpc::ErrorKind::not_found;
  });

  got(rpc::Job(start("a")).wait_for(3));  // at once: nobody waits for members that have left
  EXPECT_EQ(seen.until(5).back().member.id(), agent("a").id());
  EXPECT_NE(agent("a").id(), was);
  EXPECT_EQ(seen.text(), "worker0 joined, a joined, b joined, a left, a joined");
  History late(host());
  late.until(3);
  EXPECT_EQ(late.text(), "a joined, b joined, worker0 joined");
}

// Neither of the two members hosts the store. They have no connection to each other before the first call.
TEST_P(ElasticWorld, PresentAndLaterMembersCallEachOther) {
  got(rpc::Job(start("a")).wait_for(2));
  got(rpc::Job(start("b")).wait_for(3));
  got(rpc::Job(agent("a")).wait_for(3));
  EXPECT_EQ(got(agent("a").peer("b").call<&Worker::who>()), "b") << "the present member calls first";
  got(rpc::Job(start("c")).wait_for(4));
  EXPECT_EQ(got(agent("c").peer("a").call<&Worker::who>()), "a") << "the later member calls first";
}

TEST_P(ElasticWorld, ADeathIsReported) {
  rpc::Agent& b = start("b");
  got(rpc::Job(b).wait_for(2));
  got(rpc::Job(start_mortal("a")).wait_for(3));
  got(rpc::Job(b).wait_for(3));
  History seen(b);
  seen.until(3);
  auto pending = b.peer("a").call<&Worker::hang>();
  job_->worker("a").await_calls(1);
  const rpc::AgentId was = agent("a").id();
  job_->end("a");
  EXPECT_EQ(kind_of([&] { return got(std::move(pending)); }), rpc::ErrorKind::peer_lost);
  EXPECT_EQ(seen.until(4).back().member.id(), was);
  EXPECT_EQ(seen.text(), "a joined, b joined, worker0 joined, a lost");
  EXPECT_EQ(names(b), "b, worker0");
  EXPECT_EQ(kind_of([&] { return got(b.peer("a").call<&Worker::who>()); }), rpc::ErrorKind::not_found);
  EXPECT_EQ(got(b.peer("worker0").call<&Worker::who>()), "worker0");  // the job continues
  for (rpc::Agent* agent : {&b, &host()}) EXPECT_EQ(agent->core()->job_error(), std::nullopt);
}

TEST_P(ElasticWorld, ARestartedPeerIsANewIncarnation) {
  rpc::Agent& b = start("b");
  got(rpc::Job(b).wait_for(2));
  got(rpc::Job(start_mortal("a")).wait_for(3));
  got(rpc::Job(b).wait_for(3));
  History seen(b);
  const rpc::AgentId first = seen.until(3)[0].member.id();
  EXPECT_EQ(first, agent("a").id());
  const rpc::Peer by_name = b.peer("a"), bound = by_name.only(first);
  EXPECT_EQ(got(bound.call<&Worker::who>()), "a");
  job_->end("a");
  got(rpc::Job(start_mortal("a")).wait_for(3));  // after the end of its earlier incarnation is known
  const rpc::AgentId second = agent("a").id();
  EXPECT_NE(second, first);
  EXPECT_EQ(seen.until(5)[3].member.id(), first);
  EXPECT_EQ(seen.until(5)[4].member.id(), second);
  EXPECT_EQ(seen.text(), "a joined, b joined, worker0 joined, a lost, a joined");
  EXPECT_EQ(got(by_name.call<&Worker::who>()), "a");
  EXPECT_EQ(*by_name.calls().route()->identity(), second);
  EXPECT_EQ(kind_of([&] { return got(bound.call<&Worker::who>()); }), rpc::ErrorKind::peer_lost);
}

// The agent sends nothing for the duration of its lease, while its connections stay open: as if it were
// stopped, or behind a network that drops its messages.
TEST_P(ElasticWorld, AMemberThatWasDeclaredDeadGetsAnError) {
  rpc::Agent& b = start("b");
  got(rpc::Job(b).wait_for(2));
  rpc::Agent& a = start_short_lived("a");
  got(rpc::Job(a).wait_for(3));
  got(rpc::Job(b).wait_for(3));
  History theirs(b), own(a);
  theirs.until(3);
  own.until(3);
  auto to_a = b.peer("a").call<&Worker::hang>();
  job_->worker("a").await_calls(1);
  auto wait = rpc::Job(a).wait_for(4);
  HeldLoop held(a);
  EXPECT_EQ(theirs.until(4).back().change, rpc::MemberChange::lost);
  EXPECT_EQ(kind_of([&] { return got(std::move(to_a)); }), rpc::ErrorKind::peer_lost);
  held.release();
  expect_error(std::move(wait), rpc::ErrorKind::lease_lost, "this agent was declared dead");
  expect_error(own.watch().next(), rpc::ErrorKind::lease_lost, "this agent was declared dead");
  // No agent accepts it as a member any more.
  eventually("b refuses it", [&] {
    return kind_of([&] { return got(a.peer("b").call<&Worker::who>()); }) == rpc::ErrorKind::lease_lost;
  });
  EXPECT_EQ(names(b), "b, worker0");
}

TEST_P(ElasticWorld, ANameBelongsToOneAgentAtATime) {
  got(rpc::Job(start("a")).wait_for(2));
  got(rpc::Job(host()).wait_for(2));
  auto twin = job_->make(no_rank, "a");
  expect_error(rpc::Job(*twin).wait_for(1), rpc::ErrorKind::already_exists,
               "'a' has joined this job already");
  twin = nullptr;
  // Until the host has read that the twin has ended, a call may reach the twin.
  eventually("a serves", [&] {
    auto answer = rpc::capture([&] { return got(host().peer("a").call<&Worker::who>()); });
    return answer.ok() && answer.value() == "a";
  });
  History seen(host());
  seen.until(2);
  EXPECT_EQ(seen.text(), "a joined, worker0 joined");
}

TEST_P(ElasticWorld, WaitForCountsPresentMembers) {
  got(rpc::Job(start("a")).wait_for(2));
  got(rpc::Job(host()).wait_for(2));
  got(agent("a").leave());
  eventually("a has left", [&] { return names(host()) == "worker0"; });
  auto two = rpc::Job(host()).wait_for(2);
  EXPECT_FALSE(two.ready());
  got(rpc::Job(start("b")).wait_for(2));
  got(std::move(two));
}

TEST_P(ElasticWorld, AServingMemberEndsWhenTheOthersHaveLeft) {
  got(rpc::Job(start("a")).wait_for(2));
  got(rpc::Job(start_mortal("b")).wait_for(3));
  got(rpc::Job(host()).wait_for(3));
  std::thread server([&] { rpc::Job(host()).serve_until_shutdown(); });
  got(agent("a").leave());
  job_->end("b");  // a loss, which does not end the job
  server.join();
  EXPECT_EQ(host().core()->job_error(), std::nullopt);
}

TEST_P(ElasticWorld, AWatchHasOneWaiterAndEndsWithItsAgent) {
  rpc::Agent& a = start("a");
  auto early = rpc::Job(a).watch_members();
  expect_error(early->next(), rpc::ErrorKind::failed_precondition, "has not joined its job");
  got(rpc::Job(a).wait_for(2));
  History seen(a);
  seen.until(2);
  auto next = seen.watch().next();
  expect_error(seen.watch().next(), rpc::ErrorKind::failed_precondition,
               "a next() of this watch is in flight");
  next.cancel();
  expect_error(std::move(next), rpc::ErrorKind::cancelled, "cancelled");
  next = seen.watch().next();
  got(rpc::Job(start("b")).wait_for(3));
  EXPECT_EQ(got(std::move(next)).size(), 1U);
  next = seen.watch().next();
  a.shut_down();
  expect_error(std::move(next), rpc::ErrorKind::shut_down, "shut down");
  job_->end("a");
  expect_error(seen.watch().next(), rpc::ErrorKind::shut_down, "shut down");
}

}  // namespace weft::test
