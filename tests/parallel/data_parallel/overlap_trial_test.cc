#include <weft/parallel/data_parallel/internal/overlap_trial.h>

#include <gtest/gtest.h>

namespace weft::data_parallel::overlap_trial_test {
namespace {

using namespace std::chrono_literals;

// Durations of the two ways, with one outlier each and a slow start.
OverlapTrial trial(std::chrono::nanoseconds group, std::chrono::nanoseconds after) {
  OverlapTrial trial;
  for (std::size_t i = 0; !trial.complete(); ++i) {
    const auto usual = trial.next() == Overlap::group ? group : after;
    trial.add(i < OverlapTrial::warm_up ? 1h : i < OverlapTrial::warm_up + 2 ? 1s : usual);
  }
  return trial;
}

TEST(OverlapTrial, KeepsTheFasterWay) {
  EXPECT_EQ(OverlapTrial::faster(trial(80ms, 97ms).medians()), Overlap::group);
  EXPECT_EQ(OverlapTrial::faster(trial(97ms, 80ms).medians()), Overlap::after);
  EXPECT_EQ(trial(80ms, 97ms).medians(), (std::array{0.08, 0.097}));
}

TEST(OverlapTrial, TriesBothOverlapsEquallyOften) {
  OverlapTrial trial;
  std::size_t ways[2] = {};
  std::size_t backwards = 0;
  for (; !trial.complete(); ++backwards) {
    if (backwards >= OverlapTrial::warm_up) ++ways[trial.next() == Overlap::group ? 0 : 1];
    trial.add(1ms);
  }
  EXPECT_EQ(backwards, OverlapTrial::warm_up + 2 * OverlapTrial::rounds);
  EXPECT_EQ(ways[0], ways[1]);
}

}  // namespace
}  // namespace weft::data_parallel::overlap_trial_test
