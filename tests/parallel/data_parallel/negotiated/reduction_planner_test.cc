#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace weft::data_parallel::reduction_planner_test {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::vector<std::string>>;
using Time = ReductionPlanner::Time;

ReductionRequest request(const std::string& name, std::uint64_t bytes = 8, const std::string& kind = "f") {
  return {.name = name, .meaning = "meaning", .kind = kind, .bytes = bytes};
}

Names names_of(const std::vector<ReductionLaunch>& launches) {
  Names names;
  for (const ReductionLaunch& launch : launches) names.push_back(launch.names);
  return names;
}

TEST(ReductionPlanner, PlansRequestsThatAllRanksHaveMade) {
  ReductionPlanner planner(2);
  planner.add(0, request("a"), {});
  planner.add(1, request("b"), {});
  EXPECT_EQ(planner.ready_bytes(), 0U);
  planner.add(0, request("b"), {});
  EXPECT_EQ(planner.ready_bytes(), 8U);
  planner.add(1, request("a"), {});
  EXPECT_EQ(names_of(planner.plan(100)), (Names{{"b", "a"}}));  // in the order in which they became ready
  EXPECT_EQ(planner.ready_bytes(), 0U);
}

TEST(ReductionPlanner, FusesRequestsOfOneKindUpToTheLimit) {
  ReductionPlanner planner(1);
  for (const auto& [name, bytes, kind] :
       {std::tuple{"a", 6, "f"}, {"b", 3, "d"}, {"c", 4, "f"}, {"d", 1, "f"}, {"e", 50, "f"}, {"g", 7, "d"}})
    planner.add(0, request(name, static_cast<std::uint64_t>(bytes), kind), {});
  EXPECT_EQ(names_of(planner.plan(10)), (Names{{"a", "c"}, {"b", "g"}, {"d"}, {"e"}}));
  planner.add(0, request("a"), {});
  planner.add(0, request("b"), {});
  EXPECT_EQ(names_of(planner.plan(0)), (Names{{"a"}, {"b"}}));  // no fusion
}

TEST(ReductionPlanner, LaunchesLargeRequestsAlone) {
  ReductionPlanner planner(1);
  for (const auto& [name, bytes] : {std::pair{"a", 3}, {"b", 4}, {"c", 3}, {"d", 3}})
    planner.add(0, request(name, static_cast<std::uint64_t>(bytes)), {});
  EXPECT_EQ(names_of(planner.plan(100, 3)), (Names{{"a", "c", "d"}, {"b"}}));
}

// For any order of requests, each request is planned once, and no launch exceeds the limit.
TEST(ReductionPlanner, AcceptsRequestsInAnyOrder) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    ReductionPlanner planner(3);
    std::vector<std::pair<int, std::size_t>> requests;
    std::vector<std::uint64_t> bytes;
    for (std::size_t i = 0; i < 20; ++i) bytes.push_back(1 + random() % 40);
    for (int rank = 0; rank < 3; ++rank)
      for (std::size_t i = 0; i < bytes.size(); ++i) requests.emplace_back(rank, i);
    std::shuffle(requests.begin(), requests.end(), random);
    std::map<std::string, int> planned;
    for (const auto& [rank, i] : requests) {
      planner.add(rank, request(std::to_string(i), bytes[i], i % 2 == 0 ? "f" : "d"), {});
      if (random() % 5 != 0) continue;
      for (const auto& launch : planner.plan(50)) {
        std::uint64_t sum = 0;
        for (const auto& name : launch.names) {
          sum += bytes[std::stoul(name)];
          ++planned[name];
          EXPECT_EQ(std::stoul(name) % 2, std::stoul(launch.names.front()) % 2);
        }
        EXPECT_TRUE(launch.error.empty());
        EXPECT_LE(sum, 50U);
      }
    }
    for (const auto& launch : planner.plan(50))
      for (const auto& name : launch.names) ++planned[name];
    EXPECT_EQ(planned.size(), bytes.size()) << "seed " << seed;
    for (const auto& [name, times] : planned) EXPECT_EQ(times, 1) << name;
  }
}

TEST(ReductionPlanner, ReportsMissingRanks) {
  ReductionPlanner planner(4);
  const Time start{};
  planner.add(0, request("late"), start + 5s);
  planner.add(2, request("early"), start + 1s);
  planner.add(0, request("early"), start + 2s);
  EXPECT_EQ(planner.oldest(), start + 1s);
  EXPECT_TRUE(planner.stalled(start + 10s, 10s).empty());
  const auto one = planner.stalled(start + 11s, 10s);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].name, "early");
  EXPECT_EQ(one[0].text(), "ready on ranks 0, 2; missing ranks 1, 3");
  const auto both = planner.stalled(start + 15s, 10s);
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[1].text(), "ready on rank 0; missing ranks 1, 2, 3");
  planner.add(1, request("early"), start + 15s);
  planner.add(3, request("early"), start + 15s);
  EXPECT_EQ(planner.oldest(), start + 5s);
}

TEST(ReductionPlanner, AJoinFailsWithARankThatHasClosed) {
  for (const bool before : {false, true}) {
    ReductionPlanner planner(2);
    if (before) planner.close(1);
    planner.join(0);
    if (!before) planner.close(1);
    const auto end = planner.take_join_end();
    ASSERT_TRUE(end);
    EXPECT_NE(end->error.find("rank 1"), std::string::npos) << end->error;
  }
}

TEST(ReductionPlanner, AStallDoesNotNameRanksThatHaveJoined) {
  ReductionPlanner planner(4);
  planner.join(2);
  planner.add(0, request("a"), {});
  const auto stalls = planner.stalled(Time() + 10s, 10s);
  ASSERT_EQ(stalls.size(), 1U);
  EXPECT_EQ(stalls[0].text(), "ready on rank 0; missing ranks 1, 3");
}

}  // namespace
}  // namespace weft::data_parallel::reduction_planner_test
