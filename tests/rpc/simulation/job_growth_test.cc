// What a job costs as a function of the number of its members, in a simulated world: the bytes and messages
// of each member, and of rank 0, which keeps the store. All members start at the same time.
#include <weft/rpc/job/job.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace weft::rpc::job_growth_test {
namespace {

struct Cost {
  std::uint64_t messages = 0, bytes = 0;  // requests that were made or served; bytes in both directions
};

Cost operator-(const Cost& a, const Cost& b) { return {a.messages - b.messages, a.bytes - b.bytes}; }

Cost cost_of(const Agent& agent) {
  const AgentCounts counts = agent.counts();
  return {counts.calls_made + counts.calls_served, counts.bytes_sent + counts.bytes_received};
}

struct Growth {
  Cost keeper, member;  // member: the maximum over all other members
};

constexpr std::uint64_t overhead = 400;  // bytes of a message and of its answer, without records

class SimulatedJob {
 public:
  explicit SimulatedJob(std::size_t members) {
    world_.pace().stalls = 0;
    for (std::size_t rank = 0; rank < members; ++rank) {
      AgentOptions options;
      options.heartbeat.interval = std::chrono::nanoseconds{0};
      options.handshake_timeout = std::chrono::hours{1};
      const Rendezvous rendezvous{
          .store = "sim://worker0", .rank = rank, .world_size = members, .lease = std::chrono::hours{1}};
      agents_.push_back(&test::start_agent(world_.start("worker" + std::to_string(rank)), options,
                                           {Job::layer(rendezvous)}));
    }
  }

  // The bytes of a report of the store with the records of all members.
  std::uint64_t copy_bytes() {
    Agent& member = *agents_.back();
    const std::uint64_t before = cost_of(member).bytes;
    (void)world_.got(Job(member).store()->watch(std::string(membership_keys::members), 0));
    return cost_of(member).bytes - before;
  }

  // Begins the operation on all members, one after the other at this distance, waits for all, and returns
  // what it has cost.
  template <class F>
  Growth measure(F begin, std::chrono::nanoseconds distance = {}) {
    std::vector<Cost> before;
    std::vector<Future<void>> done;
    for (Agent* agent : agents_) before.push_back(cost_of(*agent));
    for (Agent* agent : agents_) {
      done.push_back(begin(*agent));
      world_.run_for(distance);
    }
    for (auto& one : done) world_.got(std::move(one));
    Growth growth{.keeper = cost_of(*agents_.front()) - before.front(), .member = {}};
    for (std::size_t i = 1; i < agents_.size(); ++i) {
      const Cost cost = cost_of(*agents_[i]) - before[i];
      growth.member.messages = std::max(growth.member.messages, cost.messages);
      growth.member.bytes = std::max(growth.member.bytes, cost.bytes);
    }
    return growth;
  }

 private:
  test::SimWorld world_{1, {.trace = 0, .max_steps = 2'000'000'000}};
  std::vector<Agent*> agents_;
};

void print(std::size_t members, const char* what, const Growth& growth) {
  const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("  %zu members, %s: rank 0 %llu messages, %.1f MB; a member at most %llu messages, %.1f KB\n",
              members, what, number(growth.keeper.messages), static_cast<double>(growth.keeper.bytes) / 1e6,
              number(growth.member.messages), static_cast<double>(growth.member.bytes) / 1e3);
}

class JobGrowth : public testing::TestWithParam<std::size_t> {};

TEST_P(JobGrowth, OfAllMembersAtOnceIsLinearForEach) {
  const std::size_t members = GetParam();
  SimulatedJob job(members);
  const Growth join = job.measure([](Agent& agent) { return Job(agent).join(); });
  const std::uint64_t copy = job.copy_bytes();  // of all records
  print(members, "join at once", join);
  EXPECT_LE(join.member.messages, 40U);
  EXPECT_LE(join.member.bytes, 2 * copy + overhead * join.member.messages);
  EXPECT_LE(join.keeper.messages, 40 * members);
  EXPECT_LE(join.keeper.bytes, 2 * members * copy + overhead * join.keeper.messages);

  const Growth barrier = job.measure([](Agent& agent) { return Job(agent).barrier(); });
  print(members, "barrier", barrier);
  EXPECT_LE(barrier.member.messages, 4U);
  EXPECT_LE(barrier.member.bytes, 4 * overhead);
  EXPECT_LE(barrier.keeper.messages, 2 * members);
  EXPECT_LE(barrier.keeper.bytes, members * 3 * overhead);
}

// As a batch system starts them.
TEST_P(JobGrowth, OfMembersThatStartOneAfterTheOtherIsLinearForEach) {
  const std::size_t members = GetParam();
  SimulatedJob job(members);
  const Growth join =
      job.measure([](Agent& agent) { return Job(agent).join(); }, std::chrono::milliseconds(10));
  const std::uint64_t copy = job.copy_bytes();  // of all records
  print(members, "join one after the other", join);
  const auto most = static_cast<std::uint64_t>(8 * static_cast<double>(members) * std::log2(members));
  EXPECT_LE(join.keeper.messages, most);
  EXPECT_LE(join.keeper.bytes, 2 * members * copy + overhead * join.keeper.messages);
  EXPECT_LE(join.member.messages, 2 * members);
  EXPECT_LE(join.member.bytes, 2 * copy + overhead * join.member.messages);
}

// WEFT_JOB_MEMBERS: one more size.
std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{64, 256};
  if (const char* more = std::getenv("WEFT_JOB_MEMBERS")) all.push_back(std::stoul(more));
  return all;
}
INSTANTIATE_TEST_SUITE_P(Members, JobGrowth, testing::ValuesIn(sizes()), testing::PrintToStringParamName());

}  // namespace
}  // namespace weft::rpc::job_growth_test
