#include <weft/parallel/data_parallel/negotiated/fusion_tuner.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <set>

namespace weft::data_parallel::fusion_tuner_test {
namespace {

using std::chrono::milliseconds;

FusionGrid grid() { return {{1, 2, 4, 8}, {milliseconds{0}, milliseconds{1}, milliseconds{2}}, 1}; }

// Feeds the tuner with windows of a model until it is done.
template <class Model>
FusionTuner tuned(const FusionGrid& grid, Model bytes_per_second) {
  FusionTuner tuner(grid);
  for (int window = 0; !tuner.done(); ++window) {
    if (window > 1000) throw std::runtime_error("the search does not end");
    tuner.add(static_cast<std::uint64_t>(bytes_per_second(tuner.settings())), 1);
  }
  return tuner;
}

// Best at 4 bytes and 1 ms; the best threshold depends on the cycle time.
double with_a_peak(const FusionSettings& settings) {
  const auto cycle = static_cast<double>(settings.cycle / milliseconds{1});
  const auto bytes = static_cast<double>(settings.bytes);
  return 1e6 - 1e4 * (cycle - 1) * (cycle - 1) - 1e3 * (bytes - 3 - cycle) * (bytes - 3 - cycle);
}

TEST(FusionTuner, FindsTheBestPoint) {
  const auto tuner = tuned(grid(), with_a_peak);
  EXPECT_EQ(tuner.settings(), (FusionSettings{4, milliseconds{1}}));
  EXPECT_LT(tuner.scores().size(), 12U);  // not the whole grid
  std::set<std::pair<std::uint64_t, std::int64_t>> points;
  for (const auto& score : tuner.scores())
    EXPECT_TRUE(points.emplace(score.settings.bytes, score.settings.cycle.count()).second);  // each once
}

TEST(FusionTuner, IsDeterministic) {
  EXPECT_EQ(tuned(grid(), with_a_peak).csv(), tuned(grid(), with_a_peak).csv());
}

TEST(FusionTuner, KeepsTheFirstOfEqualPoints) {
  EXPECT_EQ(tuned(grid(), [](const FusionSettings&) { return 5; }).settings(),
            (FusionSettings{1, milliseconds{0}}));
}

TEST(FusionTuner, DropsTheWarmUpAndTakesTheMedian) {
  FusionTuner tuner({{1, 2}, {milliseconds{0}}, 3});
  for (const int bytes : {9000, 10, 30, 20}) tuner.add(static_cast<std::uint64_t>(bytes), 2);
  ASSERT_EQ(tuner.scores().size(), 1U);
  EXPECT_EQ(tuner.scores()[0].bytes_per_second, 10);
  EXPECT_EQ(tuner.settings().bytes, 2U);
  for (const int bytes : {0, 8, 8, 8}) tuner.add(static_cast<std::uint64_t>(bytes), 1);
  EXPECT_TRUE(tuner.done());
  EXPECT_EQ(tuner.settings().bytes, 1U);
  EXPECT_EQ(tuner.csv(), "fusion_bytes,cycle_us,MB_per_s\n1,0,1e-05\n2,0,8e-06\n");
}

TEST(FusionTuner, RefusesAnEmptyGrid) {
  EXPECT_THROW(FusionTuner({{}, {milliseconds{0}}, 1}), rpc::Error);
  EXPECT_THROW(FusionTuner({{1}, {}, 1}), rpc::Error);
  EXPECT_THROW(FusionTuner({{1}, {milliseconds{0}}, 0}), rpc::Error);
}

}  // namespace
}  // namespace weft::data_parallel::fusion_tuner_test
