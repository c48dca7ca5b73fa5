#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

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

// Adds the request of all ranks at the same time.
void add(ReductionPlanner& planner, int ranks, const ReductionRequest& request, Time now = {}) {
  for (int rank = 0; rank < ranks; ++rank) planner.add(rank, request, now);
}

TEST(ReductionPlanner, PlansRequestsThatAllRanksHaveMade) {
  ReductionPlanner planner(2);
  planner.add(0, request("a"), {});
  planner.add(1, request("b"), {});
  EXPECT_FALSE(planner.has_ready());
  EXPECT_TRUE(planner.plan(100).empty());
  planner.add(0, request("b"), {});
  EXPECT_EQ(planner.ready_bytes(), 8U);
  planner.add(1, request("a"), {});
  EXPECT_EQ(names_of(planner.plan(100)), (Names{{"b", "a"}}));  // in the order in which they became ready
  EXPECT_FALSE(planner.has_ready());
  EXPECT_EQ(planner.ready_bytes(), 0U);
}

TEST(ReductionPlanner, FusesRequestsOfOneKindUpToTheLimit) {
  ReductionPlanner planner(1);
  for (const auto& [name, bytes, kind] :
       {std::tuple{"a", 6, "f"}, {"b", 3, "d"}, {"c", 4, "f"}, {"d", 1, "f"}, {"e", 50, "f"}, {"g", 7, "d"}})
    planner.add(0, request(name, static_cast<std::uint64_t>(bytes), kind), {});
  EXPECT_EQ(names_of(planner.plan(10)), (Names{{"a", "c"}, {"b", "g"}, {"d"}, {"e"}}));
  add(planner, 1, request("a"));
  add(planner, 1, request("b"));
  EXPECT_EQ(names_of(planner.plan(0)), (Names{{"a"}, {"b"}}));  // no fusion
}

ReductionRequest sparse_request(const std::string& name, std::int64_t rows) {
  ReductionRequest of = request(name);
  of.form.sparse_dim = 1;
  of.rows = rows;
  return of;
}

TEST(ReductionPlanner, LaunchesSparseTensorsAloneWithTheRowsOfAllRanks) {
  ReductionPlanner planner(2);
  add(planner, 2, request("a"));
  for (int rank = 0; rank < 2; ++rank) planner.add(rank, sparse_request("b", 3 + rank), {});
  add(planner, 2, request("c"));
  const auto launches = planner.plan(100);
  EXPECT_EQ(names_of(launches), (Names{{"a", "c"}, {"b"}}));
  EXPECT_EQ(launches[1].rows, (std::vector<std::int64_t>{3, 4}));
  EXPECT_TRUE(launches[0].rows.empty());
}

// Rank 1 has joined: it counts as ready, and its launches say what it contributes.
TEST(ReductionPlanner, ARankThatHasJoinedIsReady) {
  ReductionPlanner planner(3);
  ReductionRequest of = request("a");
  of.form.sizes = {7};
  for (const int rank : {0, 2}) planner.add(rank, of, {});
  add(planner, 3, request("b"));
  planner.join(1);
  for (const int rank : {0, 2}) planner.add(rank, sparse_request("c", 2), {});
  const auto launches = planner.plan(100);
  EXPECT_EQ(names_of(launches), (Names{{"b", "a"}, {"c"}}));
  ASSERT_EQ(launches[0].forms.size(), 2U);
  EXPECT_EQ(launches[0].forms[1].sizes, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(launches[1].rows, (std::vector<std::int64_t>{2, 0, 2}));
  EXPECT_FALSE(planner.has_ready());
  for (const int rank : {2, 0}) planner.join(rank);
  EXPECT_TRUE(planner.has_ready());
  EXPECT_EQ(planner.take_join_end()->last, 0);
  EXPECT_FALSE(planner.take_join_end());
  for (const int rank : {0, 2}) planner.add(rank, request("d"), {});
  EXPECT_TRUE(planner.plan(100).empty());  // the next join is not complete
  planner.add(1, request("d"), {});
  EXPECT_TRUE(planner.plan(100)[0].forms.empty());
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
        for (const auto& name : launch.names) sum += bytes[std::stoul(name)], ++planned[name];
        EXPECT_TRUE(launch.error.empty());
        EXPECT_LE(sum, 50U);
        for (const auto& name : launch.names)
          EXPECT_EQ(std::stoul(name) % 2, std::stoul(launch.names.front()) % 2);
      }
    }
    for (const auto& launch : planner.plan(50))
      for (const auto& name : launch.names) ++planned[name];
    EXPECT_EQ(planned.size(), bytes.size()) << "seed " << seed;
    for (const auto& [name, times] : planned) EXPECT_EQ(times, 1) << name;
  }
}

TEST(ReductionPlanner, NamesTheRanksThatDiffer) {
  ReductionPlanner planner(3);
  for (int rank = 0; rank < 3; ++rank)
    planner.add(rank, {"w", rank == 2 ? "Float[5], sum" : "Float[4], sum", "f", 16}, {});
  add(planner, 3, request("x"));
  const auto launches = planner.plan(100);
  ASSERT_EQ(names_of(launches), (Names{{"w"}, {"x"}}));
  EXPECT_EQ(launches[0].error, "all_reduce of 'w': rank 0 has Float[4], sum, rank 2 has Float[5], sum");
  EXPECT_EQ(launches[0].kind, static_cast<int>(rpc::ErrorKind::invalid_argument));
  EXPECT_TRUE(launches[1].error.empty());
}

TEST(ReductionPlanner, RequestsThatNeedAClosedRankFail) {
  ReductionPlanner planner(2);
  planner.add(0, request("a"), {});
  planner.add(1, request("b"), {});
  planner.close(1);
  EXPECT_TRUE(planner.has_requests_of(1));
  EXPECT_NE(planner.plan(100).at(0).error.find("rank 1 has destroyed"), std::string::npos);
  planner.add(0, request("b"), {});  // rank 1 was ready for it
  EXPECT_TRUE(planner.plan(100).at(0).error.empty());
  EXPECT_FALSE(planner.has_requests_of(1));
  planner.add(0, request("a"), {});
  EXPECT_EQ(planner.plan(100).at(0).kind, static_cast<int>(rpc::ErrorKind::failed_precondition));
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

TEST(ReductionPlanner, ARefusalFailsTheName) {
  ReductionPlanner planner(2);
  planner.add(0, request("a"), {});
  planner.add(1, {.name = "a", .refusal = "an expanded tensor"}, {});
  const auto launches = planner.plan(100);
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].error, "rank 1 has refused it: an expanded tensor");
}

}  // namespace
}  // namespace weft::data_parallel::reduction_planner_test
