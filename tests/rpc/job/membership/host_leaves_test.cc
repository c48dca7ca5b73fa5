// Fixed worlds whose rank 0, which may keep the store, leaves before others, and joins with a timeout.
#include <weft/rpc/job/membership/job_membership.h>

#include <algorithm>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::host_leaves_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using test::Job;

class HostLeavesTest : public testing::TestWithParam<JobKind> {};

INSTANTIATE_TEST_SUITE_P(Stores, HostLeavesTest,
                         testing::Values(job_kind<TcpJobStore>("tcp"),
                                         job_kind<InProcessJobStore>("in_process"),
                                         job_kind<FileJobStore>("file")),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(HostLeavesTest, TheOthersCallEachOtherAndLeave) {
  Job job(GetParam(), 4);
  job.start_all();
  auto barrier = rpc::Job(job[1]).barrier({.among = {"worker1", "worker2"}});
  got(job[0].leave());
  job.end(0);
  for (std::size_t from = 1; from < 4; ++from)
    for (std::size_t to = 1; to < 4; ++to)  // over new connections
      EXPECT_EQ(got(job[from].peer("worker" + std::to_string(to)).call<&Worker::who>()),
                "worker" + std::to_string(to));
  if (job.store().with_host) {
    const std::string text =
        "'worker0' (rank 0), which kept this job's store, has left: existing groups and calls continue, new "
        "groups, barriers and all_gathers need rank 0";
    EXPECT_TRUE(test::error_of([&] { return got(std::move(barrier)), 0; }));
    expect_error([&] { return got(rpc::Job(job[1]).barrier({.among = {"worker1", "worker2"}})), 0; },
                 ErrorKind::unavailable, whole(text));
    expect_error([&] { return got(rpc::Job(job[3]).watch_members()->next()), 0; }, ErrorKind::unavailable,
                 whole(text));
  } else {
    got(rpc::Job(job[2]).barrier({.among = {"worker1", "worker2"}}));
    got(std::move(barrier));
  }
  got(rpc::Job(job[2]).join());  // has joined
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(job[rank].core()->job_error(), std::nullopt) << rank;
    got(job[rank].leave());
    job.end(rank);
  }
}

TEST_P(HostLeavesTest, EachMemberEndsAsSoonAsItHasJoined) {
  for (int round = 0; round < 10; ++round) {
    Job job(GetParam(), 4);
    for (std::size_t rank = 0; rank < 4; ++rank) job.start(rank);
    std::vector<std::thread> members;
    for (std::size_t rank = 0; rank < 4; ++rank)
      members.emplace_back([&job, rank] {
        const auto error = test::error_of([&] {
          got(rpc::Job(job[rank]).join());
          got(job[rank].leave());
          return 0;
        });
        EXPECT_EQ(error ? error->what() : std::string(), "") << rank;
        EXPECT_EQ(job[rank].core()->job_error(), std::nullopt) << rank;
        job.end(rank);
      });
    for (std::thread& member : members) member.join();
  }
}

TEST_P(HostLeavesTest, MembersLeaveInAnyOrder) {
  std::vector<std::size_t> order{0, 1, 2};
  do {
    Job job(GetParam(), 3);
    job.start_all();
    for (const std::size_t rank : order) {
      got(job[rank].leave());
      job.end(rank);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(HostLeavesTest, AMemberThatDiesLaterIsLostToItsPeersOnly) {
  Job job(GetParam(), 4);
  job.start_all();
  auto call = job[1].peer("worker2").call<&Worker::hang>();
  job.worker(2).await_calls(1);
  got(job[0].leave());
  job.end(0);
  job.end(2);
  expect_error(std::move(call), ErrorKind::peer_lost, "worker2");
  if (!job.store().with_host) return;
  EXPECT_EQ(got(job[1].peer("worker3").call<&Worker::who>()), "worker3");
  for (const std::size_t rank : {1, 3}) got(job[rank].leave());
}

TEST_P(HostLeavesTest, ANoticeOfAnotherMemberIsRefused) {
  Job job(GetParam(), 3);
  job.start_all();
  expect_error(job[1].peer("worker2").call<&detail::MembershipService::host_left>(StoreViewMessage{}),
               ErrorKind::permission_denied, "'worker1' does not keep the store of this job");
}

TEST_P(HostLeavesTest, AJoinWithATimeoutNamesTheMissingRanks) {
  Job job(GetParam(), 4);
  rpc::Job first(job.start(0));
  got(first.wait_for(1));
  const auto message = [&](rpc::Job member) { return message_of([&] { return got(member.join(1ms)), 0; }); };
  EXPECT_EQ(message(rpc::Job(job[0])), "3 of 4 ranks have not joined before the deadline: 1, 2, 3");
  got(rpc::Job(job.start(2)).wait_for(2));
  EXPECT_EQ(message(rpc::Job(job[2])), "2 of 4 ranks have not joined before the deadline: 1, 3");
  expect_error([&] { return got(rpc::Job(job[2]).wait_for(3, 1ms)), 0; }, ErrorKind::deadline_exceeded);
  auto join = first.join(too_long);
  auto second = rpc::Job(job[2]).join();
  for (const std::size_t rank : {1, 3}) job.start(rank);
  auto third = rpc::Job(job[1]).join();
  got(rpc::Job(job[3]).join(too_long));
  got(std::move(join));
  got(std::move(second));
  got(std::move(third));
}

// A member of the earlier job no longer renews its lease at this address, whose store does not know the
// lease.
TEST(HostLeaves, RankZeroOfALaterJobMayListenAtTheAddress) {
  Job job(job_kind<TcpJobStore>("tcp"), 2);
  const auto short_lease = [](MemberOptions& options) { options.rendezvous.lease = test::short_lease; };
  job.start_all(short_lease);
  got(job[0].leave());
  job.end(0);
  const auto host = job.make(0, "worker0", short_lease), member = job.make(1, "worker1", short_lease);
  auto join = rpc::Job(*host).join();
  got(rpc::Job(*member).join());
  got(std::move(join));
  HeldLoop held(*member);
  eventually("a lease has expired", [&] { return host->core()->job_error().has_value(); });
  EXPECT_EQ(job[1].core()->job_error(), std::nullopt);
  held.release();
  got(job[1].leave());
}

TEST(HostLeaves, AJoinWithoutRankZeroTimesOutAndIsRepeated) {
  Job job(job_kind<TcpJobStore>("tcp"), 2);
  rpc::Job worker(job.start(1));
  expect_error(
      [&] { return got(worker.join(1ms)), 0; }, ErrorKind::deadline_exceeded,
      "'worker1' has not joined its job before the deadline: the job's store (" + job.store().url + ")");
  auto join = worker.join();
  got(rpc::Job(job.start(0)).join());
  got(std::move(join));
}

}  // namespace
}  // namespace weft::rpc::host_leaves_test
