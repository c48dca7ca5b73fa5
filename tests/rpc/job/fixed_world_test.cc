// The knowledge that the members of a fixed world have of each other.
#include <weft/rpc/job/membership/member.h>

#include "tests/support/job.h"

namespace weft::rpc::fixed_world_test {
namespace {

TEST(FixedWorld, ListsTheNamesAndRanksOfAll) {
  test::Job job(test::job_kind<test::InProcessJobStore>("in_process"), 4);
  job.start_all();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    std::map<std::string, std::optional<std::size_t>> ranks;
    for (const Member& member : Job(job[rank]).members()) {
      ranks[member.name] = member.rank;
      EXPECT_EQ(member.id(), job[member.name].id());
      EXPECT_EQ(member.addresses, job[member.name].addresses());
    }
    EXPECT_EQ(ranks, (std::map<std::string, std::optional<std::size_t>>{
                         {"worker0", 0}, {"worker1", 1}, {"worker2", 2}, {"worker3", 3}}))
        << rank;
  }
}

}  // namespace
}  // namespace weft::rpc::fixed_world_test
