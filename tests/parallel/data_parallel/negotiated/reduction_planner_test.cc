#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>

#include <gtest/gtest.h>

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
