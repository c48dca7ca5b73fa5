// BucketReductions of one rank, with a hook of the test that determines the reductions.
#include <weft/parallel/data_parallel/internal/bucket_reductions.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::bucket_reductions_test {
namespace {

using namespace testing;

struct Step {
  std::size_t bucket;
  int step;
  friend bool operator==(const Step&, const Step&) = default;
};

// Logs the steps, and returns the future of `start`.
struct Logging : CommunicationHook {
  std::optional<rpc::Future<void>> run(const Group&, GradientBucket& bucket, int step) override {
    log.push_back({bucket.index, step});
    return start(log.back());
  }
  std::function<std::optional<rpc::Future<void>>(const Step&)> start;
  std::vector<Step> log;
};

rpc::Future<void> completed() { return rpc::Future<void>::made(rpc::Result<void>{}); }
rpc::Future<void> failed(const std::string& text) {
  return rpc::Future<void>::made(
      rpc::Result<void>(std::make_exception_ptr(rpc::Error(ErrorKind::peer_lost, text))));
}

class TwoBuckets : public ::testing::Test {
 protected:
  static std::vector<NamedParameter> parameters() {
    return {{"first", at::zeros({2})}, {"second", at::zeros({3})}, {"third", at::zeros({4})}};
  }
  void launch_both() {
    reductions.launch_next({});
    reductions.launch_next({});
  }

  Company company{1};
  const Group group = company.groups().front();
  GradientBuckets buckets{group, parameters(), {{2, 1}, {0}}};
  Logging hook;
  BucketReductions reductions{buckets, group, &hook};
  std::vector<std::size_t> reduced;
  const std::function<void(std::size_t)> on_reduced = [this](std::size_t bucket) {
    reduced.push_back(bucket);
  };
};

TEST_F(TwoBuckets, ABucketIsCompleteWithTheLastGradientThatItExpects) {
  reductions.expect(0);
  reductions.expect(0);
  EXPECT_FALSE(reductions.next_is_complete());
  reductions.add(0, 2, true);
  EXPECT_FALSE(reductions.next_is_complete());
  reductions.add(0, 1, true);
  EXPECT_TRUE(reductions.next_is_complete());
}

TEST_F(TwoBuckets, FurtherStepsStartInWait) {
  hook.start = [](const Step& step) { return step.step < 2 ? std::optional(completed()) : std::nullopt; };
  launch_both();
  EXPECT_TRUE(reductions.all_launched());
  EXPECT_EQ(hook.log, (std::vector<Step>{{0, 0}, {1, 0}}));
  reductions.wait(on_reduced);
  EXPECT_EQ(hook.log, (std::vector<Step>{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(reduced, (std::vector<std::size_t>{0, 1}));
}

TEST_F(TwoBuckets, WaitReturnsWhenNoBucketIsInFlightEvenAfterAnError) {
  rpc::Promise<void> second;
  std::atomic<bool> complete{false};
  hook.start = [&](const Step& step) -> std::optional<rpc::Future<void>> {
    return step.bucket == 0 ? failed("the connection is lost") : second.future();
  };
  launch_both();
  std::thread completes([&] {
    complete = true;
    second.complete({});
  });
  const auto error = error_of([&] { return reductions.wait(on_reduced), 0; });
  EXPECT_TRUE(complete);
  completes.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(error->what(),
               "DistributedDataParallel: bucket 0 (third, second) was not reduced: the connection is lost");
  EXPECT_TRUE(reduced.empty());
  EXPECT_EQ(hook.log.size(), 2U);  // no further step
}

TEST_F(TwoBuckets, TheStatsListReducedBucketsAndCountTheOthers) {
  hook.start = [](const Step& step) { return step.step == 0 ? std::optional(completed()) : std::nullopt; };
  reductions.skip_next();
  reductions.launch_next({});
  EXPECT_TRUE(reductions.is_skipped(0));
  reductions.wait(on_reduced);
  IterationStats stats;
  reductions.note({}, stats);
  EXPECT_EQ(stats.skipped, 1U);
  ASSERT_EQ(stats.buckets.size(), 1U);
  EXPECT_EQ(stats.buckets[0].index, 1U);
  EXPECT_EQ(stats.buckets[0].bytes, buckets.bytes(1));
  EXPECT_EQ(stats.buckets[0].dtype, "Float");
  EXPECT_GE(stats.buckets[0].reduced, stats.buckets[0].launched);
}

}  // namespace
}  // namespace weft::data_parallel::bucket_reductions_test
