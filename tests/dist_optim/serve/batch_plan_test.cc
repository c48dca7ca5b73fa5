#include <weft/dist_optim/serve/batch_plan.h>

#include <gtest/gtest.h>

namespace weft::dist_optim::batch_plan_test {
namespace {

using std::chrono::milliseconds;
using Indices = std::vector<std::size_t>;

const rpc::Clock::time_point start{};

QueuedRequest at(int ms, std::size_t length = 1) {
  return {.length = length, .arrived = start + milliseconds(ms)};
}
QueuedRequest until(QueuedRequest request, int ms) {
  request.deadline = start + milliseconds(ms);
  return request;
}
BatchPlan plan(const std::deque<QueuedRequest>& queue, int ms, const BatchLimits& limits) {
  return plan_batch(queue, start + milliseconds(ms), limits);
}

constexpr BatchLimits limits{.max_batch = 3, .max_delay = milliseconds(10)};

TEST(BatchPlan, OfAnEmptyQueueWaitsForRequests) {
  const BatchPlan empty = plan({}, 0, limits);
  EXPECT_EQ(empty.batch, Indices{});
  EXPECT_EQ(empty.wait_until, std::nullopt);
}

TEST(BatchPlan, RunsWhenTheOldestRequestHasWaited) {
  const std::deque<QueuedRequest> queue{at(1), at(5)};
  const BatchPlan early = plan(queue, 10, limits);
  EXPECT_EQ(early.batch, Indices{});
  EXPECT_EQ(early.wait_until, start + milliseconds(11));
  EXPECT_EQ(plan(queue, 11, limits).batch, (Indices{0, 1}));
}

TEST(BatchPlan, RunsAtOnceWhenItIsFull) {
  EXPECT_EQ(plan({at(0), at(0), at(0), at(0)}, 0, limits).batch, (Indices{0, 1, 2}));
}

// The queue is ordered by priority: the oldest request may be any of them.
TEST(BatchPlan, ADueRequestOfLowPriorityStartsABatch) {
  EXPECT_EQ(plan({at(9), at(0)}, 10, limits).batch, (Indices{0, 1}));
  EXPECT_EQ(plan({at(9), at(9), at(9), at(0)}, 10, limits).batch, (Indices{0, 1, 2}));
}

TEST(BatchPlan, DropsWhatIsTooLateOrCancelled) {
  QueuedRequest cancelled = at(0);
  cancelled.is_cancelled = true;
  const BatchPlan mixed = plan({until(at(0), 10), at(0), cancelled, until(at(0), 11)}, 10, limits);
  EXPECT_EQ(mixed.dropped, (Indices{0, 2}));
  EXPECT_EQ(mixed.batch, (Indices{1, 3}));
  const BatchPlan all = plan({cancelled}, 0, limits);
  EXPECT_EQ(all.dropped, Indices{0});
  EXPECT_EQ(all.batch, Indices{});
  EXPECT_EQ(all.wait_until, std::nullopt);
}

TEST(BatchPlan, IsMadeAgainAtADeadlineBeforeTheDelay) {
  EXPECT_EQ(plan({at(0), until(at(0), 4)}, 1, limits).wait_until, start + milliseconds(4));
}

TEST(BatchPlan, LimitsTheSizeAfterPadding) {
  BatchLimits padded = limits;
  padded.max_padded = 10;
  // 2 x 4, and with a third request of 5 it would be 3 x 5.
  EXPECT_EQ(plan({at(0, 4), at(0, 2), at(0, 5)}, 0, padded).batch, (Indices{0, 1}));
  EXPECT_EQ(plan({at(0, 4), at(0, 2)}, 0, padded).batch, Indices{});    // waits for others
  EXPECT_EQ(plan({at(0, 50), at(0, 1)}, 0, padded).batch, Indices{0});  // alone, although it is too long
}

TEST(BatchPlan, NeverWaitsWithoutADelay) {
  BatchLimits at_once = limits;
  at_once.max_delay = {};
  EXPECT_EQ(plan({at(0)}, 0, at_once).batch, Indices{0});
}

}  // namespace
}  // namespace weft::dist_optim::batch_plan_test
