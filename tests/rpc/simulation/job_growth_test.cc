// What a job costs as a function of the number of its members, in a simulated world: the bytes and messages
// of each member, and of rank 0, which keeps the store. All members start at the same time, one after the
// other, or in a storm of joins and departures.
#include <weft/rpc/job/job.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
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
  explicit SimulatedJob(std::size_t members, bool fixed_world = true) {
    world_.pace().stalls = 0;
    for (std::size_t rank = 0; rank < members; ++rank) {
      AgentOptions options;
      options.heartbeat.interval = std::chrono::nanoseconds{0};
      options.handshake_timeout = std::chrono::hours{1};
      const Rendezvous rendezvous{.store = "sim://worker0",
                                  .rank = rank,
                                  .world_size = fixed_world ? members : 0,
                                  .fixed_world = fixed_world,
                                  .lease = std::chrono::hours{1}};
      agents_.push_back(&test::start_agent(world_.start("worker" + std::to_string(rank)), options,
                                           {Job::layer(rendezvous)}));
    }
  }

  std::vector<Agent*>& agents() { return agents_; }
  test::SimWorld& world() { return world_; }

  // The bytes of a report of the store with the records of all members.
  std::uint64_t copy_bytes() {
    Agent& member = *agents_.back();
    const std::uint64_t before = cost_of(member).bytes;
    (void)world_.got(Job(member).store()->watch(std::string(membership_keys::members), 0));
    return cost_of(member).bytes - before;
  }

  // What f() costs the members.
  Growth cost(const std::function<void()>& f) {
    std::vector<Cost> before;
    for (Agent* agent : agents_) before.push_back(cost_of(*agent));
    f();
    Growth growth{.keeper = cost_of(*agents_.front()) - before.front(), .member = {}};
    for (std::size_t i = 1; i < agents_.size(); ++i) {
      const Cost cost = cost_of(*agents_[i]) - before[i];
      growth.member.messages = std::max(growth.member.messages, cost.messages);
      growth.member.bytes = std::max(growth.member.bytes, cost.bytes);
    }
    return growth;
  }

  // Begins the operation on all members, one after the other at this distance, waits for all, and returns
  // what it has cost.
  template <class F>
  Growth measure(F begin, std::chrono::nanoseconds distance = {}) {
    return cost([&] {
      std::vector<Future<void>> done;
      for (Agent* agent : agents_) {
        done.push_back(begin(*agent));
        world_.run_for(distance);
      }
      for (auto& one : done) world_.got(std::move(one));
    });
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

// In an elastic world, a tenth of the members leaves within a second, and as many others join.
TEST_P(JobGrowth, OfAStormOfJoinsAndDeparturesIsLinearForEach) {
  const std::size_t members = GetParam(), storm = members / 10;
  SimulatedJob job(members + storm, false);
  std::vector<Agent*>& agents = job.agents();
  const std::vector<Agent*> joining(agents.end() - static_cast<std::ptrdiff_t>(storm), agents.end());
  agents.resize(members);
  (void)job.measure([](Agent& agent) { return Job(agent).join(); });
  const auto run_until_all_know = [&](const std::vector<Agent*>& present) {
    constexpr auto pause = std::chrono::milliseconds(10);
    std::set<std::string> names;
    for (const Agent* agent : present) names.insert(agent->name());
    const auto knows = [&](Agent* agent) {
      std::set<std::string> known;
      for (const Member& member : Job(*agent).members()) known.insert(member.name);
      return known == names;
    };
    std::chrono::milliseconds took{0};
    for (; !std::all_of(agents.begin(), agents.end(), knows); took += pause) job.world().run_for(pause);
    return took;
  };
  (void)run_until_all_know(agents);

  const std::vector<Agent*> leaving(agents.end() - static_cast<std::ptrdiff_t>(storm), agents.end());
  agents.resize(members - storm);
  std::vector<Agent*> afterwards = agents;
  afterwards.insert(afterwards.end(), joining.begin(), joining.end());
  std::chrono::milliseconds took{0};
  const Growth growth = job.cost([&] {  // to the members that remain
    std::vector<Future<void>> done;
    for (std::size_t i = 0; i < storm; ++i) {
      done.push_back(Job(*leaving[i]).leave());
      done.push_back(Job(*joining[i]).join());
      job.world().run_for(std::chrono::nanoseconds(std::chrono::seconds(1)) / storm);
    }
    for (auto& one : done) job.world().got(std::move(one));
    took = run_until_all_know(afterwards);
  });
  const std::uint64_t copy = job.copy_bytes();
  print(members, "storm", growth);
  std::printf("  all members know all changes %lld ms after the last one\n",
              static_cast<long long>(took.count()));
  EXPECT_LE(growth.keeper.messages, 40 * members);
  EXPECT_LE(growth.keeper.bytes, 2 * members * copy + overhead * growth.keeper.messages);
  EXPECT_LE(growth.member.messages, 2 * members);
  EXPECT_LE(growth.member.bytes, 2 * copy + overhead * growth.member.messages);
  EXPECT_LE(took, std::chrono::seconds(2));
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
