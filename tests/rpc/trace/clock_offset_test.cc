#include <weft/rpc/trace/clock_offset.h>

#include <weft/rpc/trace/tracer.h>

#include <cstdlib>

#include "tests/support/cluster.h"

namespace weft::rpc::clock_offset_test {
namespace {

TEST(ClockOffset, IsTakenAtTheMidpointOfTheShortestRoundTrip) {
  const ClockOffset offset = clock_offset({{0, 5000, 1000}, {2000, 1'002'060, 2100}, {5000, 7, 9000}});
  EXPECT_EQ(offset.ahead, 1'000'010);
  EXPECT_EQ(offset.uncertain, 50);
}

TEST(ClockOffset, MayBeNegative) {
  EXPECT_EQ(clock_offset({{1000, 0, 1010}}).ahead, -1005);
  EXPECT_EQ(test::kind_of([] { clock_offset({}); }), ErrorKind::invalid_argument);
}

TEST(ClockOffset, IsWithinTheStatedUncertainty) {
  std::uint64_t state = 1;
  const auto draw = [&](std::int64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>(state >> 33) % below;
  };
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t truth = draw(2'000'000'000) - 1'000'000'000;
    std::vector<ClockSample> samples;
    for (int k = 0; k < 5; ++k) {
      const std::int64_t sent = draw(1'000'000), there = draw(50'000), back = draw(50'000);
      samples.push_back({sent, sent + there + truth, sent + there + back});
    }
    const ClockOffset offset = clock_offset(samples);
    EXPECT_LE(std::llabs(offset.ahead - truth), offset.uncertain + 1);
  }
}

TEST(ClockOffset, OfAnAgentOnTheSameHostIsZero) {
  auto tracer = std::make_shared<Tracer>();
  test::Cluster cluster{{}, {"a"}};
  cluster.add("b", {tracer->layer()});
  const ClockOffset offset = measure_clock(cluster.peer("a", "b"), 4);
  EXPECT_LE(std::llabs(offset.ahead), offset.uncertain + 1);
  EXPECT_EQ(test::kind_of([&] { measure_clock(cluster.peer("b", "a")); }), ErrorKind::not_found);
}

}  // namespace
}  // namespace weft::rpc::clock_offset_test
