#include <weft/parallel/data_parallel/negotiated/internal/reduction_coordinator.h>

#include <gtest/gtest.h>

#include "tests/support/hand_loop.h"

namespace weft::data_parallel::reduction_coordinator_test {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::vector<std::string>>;

// Two ranks, and the plans that rank 0 executes.
struct Coordinated {
  explicit Coordinated(const NegotiationOptions& options = {})
      : coordinator(std::make_shared<ReductionCoordinator>(
            loop, 2, options, 1000,
            [this](int to, const NegotiationPlan& plan) {
              if (to != 0) return;
              for (const ReductionLaunch& launch : plan.launches) launches.push_back(launch.names);
            },
            [](rpc::LogLevel, const std::string&) {})) {}

  void request(int rank, const std::vector<std::string>& names) {
    NegotiationRequests message;
    for (const std::string& name : names)
      message.requests.push_back({.name = name, .meaning = "meaning", .kind = "kind", .bytes = 8});
    coordinator->take(rank, std::move(message));
  }
  void request(const std::vector<std::string>& names) {
    for (int rank = 0; rank < 2; ++rank) request(rank, names);
  }

  std::shared_ptr<test::HandLoop> loop = std::make_shared<test::HandLoop>();
  Names launches;
  std::shared_ptr<ReductionCoordinator> coordinator;
};

TEST(ReductionCoordinator, PlansAtOnceIfNoOtherRequestIsExpected) {
  Coordinated ranks;
  ranks.request({"a"});
  EXPECT_EQ(ranks.launches, (Names{{"a"}}));
}

TEST(ReductionCoordinator, WaitsForRequestsThatOneRankHasMade) {
  Coordinated ranks;
  ranks.request(0, {"a", "b", "c"});
  ranks.request(1, {"b"});
  EXPECT_EQ(ranks.launches, Names{});
  ranks.request(1, {"a", "c"});
  EXPECT_EQ(ranks.launches, (Names{{"b", "a", "c"}}));
}

TEST(ReductionCoordinator, WaitsForTheLaunchInFlight) {
  Coordinated ranks;
  ranks.request({"a"});
  ranks.request({"b"});
  ranks.request({"c"});
  EXPECT_EQ(ranks.launches, (Names{{"a"}}));
  ranks.coordinator->completed(1, 8);
  EXPECT_EQ(ranks.launches, (Names{{"a"}, {"b", "c"}}));
}

TEST(ReductionCoordinator, WaitsForOneCycleAtMost) {
  Coordinated ranks({.fusion = {.cycle = 5ms}});
  ranks.request(0, {"a", "b"});
  ranks.request(1, {"a"});
  ranks.loop->advance(4ms);
  ranks.loop->turn();
  EXPECT_EQ(ranks.launches, Names{});
  ranks.loop->advance(1ms);
  ranks.loop->turn();
  EXPECT_EQ(ranks.launches, (Names{{"a"}}));
}

TEST(ReductionCoordinator, DoesNotWaitBeyondTheThreshold) {
  Coordinated ranks({.fusion = {.bytes = 16}});
  ranks.request(0, {"a", "b", "c"});
  ranks.request(1, {"a"});
  EXPECT_EQ(ranks.launches, Names{});
  ranks.request(1, {"b"});
  EXPECT_EQ(ranks.launches, (Names{{"a", "b"}}));
}

}  // namespace
}  // namespace weft::data_parallel::reduction_coordinator_test
