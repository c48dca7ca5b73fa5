#include <weft/parallel/data_parallel/internal/bucket_reductions.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::bucket_reductions_test {
namespace {

using namespace testing;

// The reduction of bucket 0 fails, and the test completes that of bucket 1.
struct Fails : CommunicationHook {
  std::optional<rpc::Future<void>> run(const Group&, GradientBucket& bucket, int) override {
    ++steps;
    if (bucket.index == 1) return second.future();
    return rpc::Future<void>::made(rpc::Result<void>(
        std::make_exception_ptr(rpc::Error(ErrorKind::peer_lost, "the connection is lost"))));
  }
  int steps = 0;
  rpc::Promise<void> second;
};

TEST(BucketReductions, WaitReturnsWhenNoBucketIsInFlightEvenAfterAnError) {
  Company company{1};
  const Group group = company.groups().front();
  const std::vector<NamedParameter> parameters{
      {"first", at::zeros({2})}, {"second", at::zeros({3})}, {"third", at::zeros({4})}};
  GradientBuckets buckets{group, parameters, {{2, 1}, {0}}};
  Fails hook;
  BucketReductions reductions{buckets, group, &hook};
  for (int bucket = 0; bucket < 2; ++bucket) reductions.launch_next({});
  std::atomic<bool> complete{false};
  std::thread completes([&] {
    complete = true;
    hook.second.complete({});
  });
  std::vector<std::size_t> reduced;
  const auto error =
      error_of([&] { return reductions.wait([&](std::size_t bucket) { reduced.push_back(bucket); }), 0; });
  EXPECT_TRUE(complete);
  completes.join();
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(error->what(),
               "DistributedDataParallel: bucket 0 (third, second) was not reduced: the connection is lost");
  EXPECT_TRUE(reduced.empty());
  EXPECT_EQ(hook.steps, 2);  // no further step
}

struct Step {
  std::size_t bucket;
  int step;
  friend bool operator==(const Step&, const Step&) = default;
};

// Each bucket has this number of steps, which complete at once.
struct Logging : CommunicationHook {
  std::optional<rpc::Future<void>> run(const Group&, GradientBucket& bucket, int step) override {
    log.push_back({bucket.index, step});
    if (step == steps) return std::nullopt;
    return rpc::Future<void>::made(rpc::Result<void>{});
  }
  int steps = 1;
  std::vector<Step> log;
};

class TwoBuckets : public ::testing::Test {
 protected:
  static std::vector<NamedParameter> parameters() {
    return {{"first", at::zeros({2})}, {"second", at::zeros({3})}, {"third", at::zeros({4})}};
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

TEST_F(TwoBuckets, FurtherStepsStartInWait) {
  hook.steps = 2;
  for (int bucket = 0; bucket < 2; ++bucket) reductions.launch_next({});
  EXPECT_TRUE(reductions.all_launched());
  EXPECT_EQ(hook.log, (std::vector<Step>{{0, 0}, {1, 0}}));
  reductions.wait(on_reduced);
  EXPECT_EQ(hook.log, (std::vector<Step>{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(reduced, (std::vector<std::size_t>{0, 1}));
}

TEST_F(TwoBuckets, TheStatsListReducedBucketsAndCountTheOthers) {
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
