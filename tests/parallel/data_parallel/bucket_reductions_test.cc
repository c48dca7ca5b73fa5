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

}  // namespace
}  // namespace weft::data_parallel::bucket_reductions_test
