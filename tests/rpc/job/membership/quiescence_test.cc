// Job::quiesce: members leave together once the chains of calls between them have ended.
#include <weft/rpc/job/membership/quiescence.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::quiescence_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using detail::given_up;
using detail::MemberWork;
using detail::proves_quiet;
using detail::Wave;
using test::Job;

// --- proves_quiet(): the evaluation of two waves ---

MemberWork passive(std::uint64_t sent, std::uint64_t received) {
  return {.sent = sent, .received = received, .ever = sent + received};
}

TEST(Waves, ProveQuiescenceIfAllRequestsArrivedAndNothingChanged) {
  const Wave wave{{"anna", passive(3, 1)}, {"bert", passive(2, 4)}};
  EXPECT_TRUE(proves_quiet(wave, wave));
  EXPECT_FALSE(proves_quiet({}, wave)) << "the first";
  EXPECT_FALSE(proves_quiet({}, {}));
}

TEST(Waves, ProveNothingWhileARequestIsOnTheWire) {
  const Wave wave{{"anna", passive(3, 1)}, {"bert", passive(2, 3)}};
  EXPECT_FALSE(proves_quiet(wave, wave));
}

// A request from bert to anna crossed the first wave: anna replied to the wave before the request arrived,
// and bert after he had sent it.
TEST(Waves, ProveNothingIfTheFirstWaveWasNoConsistentCut) {
  const Wave first{{"anna", passive(1, 0)}, {"bert", passive(1, 1)}},
      second{{"anna", passive(2, 1)}, {"bert", passive(1, 2)}};
  EXPECT_FALSE(proves_quiet(first, second));
  EXPECT_TRUE(proves_quiet(second, second));
}

TEST(Waves, ProveNothingWhileACallIsInFlight) {
  for (const bool made : {false, true}) {
    Wave wave{{"anna", passive(1, 1)}};
    (made ? wave["anna"].made : wave["anna"].served) = 1;
    EXPECT_FALSE(proves_quiet(wave, wave));
  }
}

TEST(Waves, ProveNothingOverAConnectionThatEndedBetween) {
  Wave before{{"anna", passive(1, 1)}}, now = before;
  now["anna"].ever = 4;
  EXPECT_FALSE(proves_quiet(before, now));
}

TEST(Waves, NameAMemberThatGaveUp) {
  Wave wave{{"anna", passive(1, 1)}, {"bert", passive(1, 1)}};
  EXPECT_FALSE(given_up(wave));
  wave["bert"] = {.given_up = true, .served = 1, .made = 2};
  const auto error = given_up(wave);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::deadline_exceeded);
  EXPECT_STREQ(error->what(), "quiesce: calls are still in flight at 'bert' (1 call served, 2 calls made)");
  wave["anna"].cancelled = true;
  EXPECT_EQ(given_up(wave)->kind(), ErrorKind::aborted);
}

// --- Agents ---

// Each link of a chain calls or notifies the next one, and does not wait for it.
struct Chain {
  Chain(Agent& own, std::vector<std::string> all) : agent(own), names(std::move(all)) {}

  void link(std::uint64_t left) {
    ++links;
    if (left == holds_at) {
      held.set();
      released.wait();
    }
    if (left == 0) return;
    const Peer next = agent.peer(names[left % names.size()]);
    if (left % 2 == 0) {
      next.notify<&Chain::link>(left - 1);
    } else {
      (void)next.call<&Chain::link>(left - 1);
    }
  }
  using Service = rpc::Service<"chain", Method<"link", &Chain::link>>;

  Agent& agent;
  const std::vector<std::string> names;
  std::atomic<std::uint64_t> holds_at{~std::uint64_t{0}};
  Event held, released;
  std::atomic<std::uint64_t> links{0};
};

const JobKind kinds[] = {test::job_kind<test::TcpJobStore>("tcp"),
                         test::job_kind<test::InProcessJobStore>("in_process"),
                         test::job_kind<test::FileJobStore>("file")};
std::string name_of(const testing::TestParamInfo<JobKind>& info) { return info.param.name; }

class QuiescenceTest : public testing::TestWithParam<JobKind> {
 protected:
  static constexpr std::size_t world = 3;
  QuiescenceTest() {
    job.start_all();
    for (std::size_t rank = 0; rank < world; ++rank) {
      chains.push_back(std::make_shared<Chain>(job[rank], names));
      job[rank].serve(chains.back());
    }
  }
  ~QuiescenceTest() override {
    for (const auto& chain : chains) chain->released.set();
  }
  std::vector<Future<void>> quiesce(const CollectiveOptions& options = {}) {
    std::vector<Future<void>> all;
    for (std::size_t rank = 0; rank < world; ++rank) all.push_back(rpc::Job(job[rank]).quiesce(options));
    return all;
  }
  // Waits until each member that is passive now has taken part in a wave and knows its result: 500 barriers
  // take longer than the interval between two waves.
  void let_waves_come_round() {
    for (int i = 0; i < 500; ++i) {
      std::vector<Future<void>> barriers;
      for (std::size_t rank = 0; rank < world; ++rank) barriers.push_back(rpc::Job(job[rank]).barrier());
      for (auto& barrier : barriers) got(std::move(barrier));
    }
  }
  std::uint64_t links() const {
    std::uint64_t all = 0;
    for (const auto& chain : chains) all += chain->links;
    return all;
  }

  const std::vector<std::string> names{"worker0", "worker1", "worker2"};
  Job job{GetParam(), world};
  std::vector<std::shared_ptr<Chain>> chains;
};
INSTANTIATE_TEST_SUITE_P(Stores, QuiescenceTest, testing::ValuesIn(kinds), name_of);

// A chain of twenty links. The first held link is released after all members have begun to wait for
// quiescence. The next link is held at one of these members until the first wave has finished.
TEST_P(QuiescenceTest, WaitsForAChainOfTwentyLinks) {
  chains[2]->holds_at = 10;
  chains[1]->holds_at = 9;
  job[0].peer("worker1").notify<&Chain::link>(std::uint64_t{20});
  chains[2]->held.wait();
  auto all = quiesce();
  let_waves_come_round();
  chains[2]->released.set();
  chains[1]->held.wait();
  let_waves_come_round();
  for (auto& one : all) EXPECT_FALSE(one.ready());
  EXPECT_LT(links(), 21U);
  chains[1]->released.set();
  for (auto& one : all) got(std::move(one));
  EXPECT_EQ(links(), 21U);
  for (const std::size_t rank : {1, 2}) got(job[rank].leave());
  rpc::Job(job[0]).serve_until_shutdown();
}

TEST_P(QuiescenceTest, ManyChainsAtOnce) {
  for (int round = 1; round <= 20; ++round) {
    for (std::size_t rank = 0; rank < world; ++rank)
      for (const std::string& first : names) job[rank].peer(first).notify<&Chain::link>(std::uint64_t{20});
    for (auto& one : quiesce()) got(std::move(one));
    EXPECT_EQ(links(), 21U * world * world * static_cast<std::uint64_t>(round));
  }
}

TEST_P(QuiescenceTest, IsABarrierIfNothingIsInFlight) {
  auto first = rpc::Job(job[0]).quiesce(), second = rpc::Job(job[1]).quiesce();
  got(job[1].peer("worker2").call<&Chain::link>(std::uint64_t{0}));
  EXPECT_FALSE(first.ready());
  got(rpc::Job(job[2]).quiesce());
  got(std::move(first));
  got(std::move(second));
}

// The other members have no deadline.
TEST_P(QuiescenceTest, ADeadlineFailsAllMembersAndNamesTheBusyOnes) {
  chains[1]->holds_at = 0;
  auto call = job[1].peer("worker1").call<&Chain::link>(std::uint64_t{0});
  chains[1]->held.wait();
  auto host = rpc::Job(job[0]).quiesce(), other = rpc::Job(job[2]).quiesce();
  expect_error(rpc::Job(job[1]).quiesce({.timeout = 20ms}), ErrorKind::deadline_exceeded,
               "'worker1' (1 call served, 1 call made)");
  expect_error(std::move(host), ErrorKind::deadline_exceeded, "'worker1'");
  expect_error(std::move(other), ErrorKind::deadline_exceeded, "'worker1'");
  chains[1]->released.set();
  got(std::move(call));
  for (auto& one : quiesce()) got(std::move(one));
}

TEST_P(QuiescenceTest, AMemberThatCancelsAbortsTheWaitOfTheOthers) {
  chains[1]->holds_at = 0;
  auto call = job[1].peer("worker1").call<&Chain::link>(std::uint64_t{0});
  chains[1]->held.wait();
  auto all = quiesce();
  all[1].cancel();  // while it is busy itself
  expect_error(std::move(all[1]), ErrorKind::cancelled, "");
  expect_error(std::move(all[0]), ErrorKind::aborted, "'worker1' has cancelled quiesce()");
  expect_error(std::move(all[2]), ErrorKind::aborted, "'worker1' has cancelled quiesce()");
  chains[1]->released.set();
  got(std::move(call));
}

}  // namespace
}  // namespace weft::rpc::quiescence_test
