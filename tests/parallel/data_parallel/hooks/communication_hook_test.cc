#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::communication_hook_test {
namespace {

using namespace testing;

// Keeps the arguments that the reducer passes.
struct Recorder : CommunicationHook {
  void begin_iteration() override {
    ++iterations;
    indices.clear();
  }
  std::optional<rpc::Future<void>> run(const Group& group, GradientBucket& bucket, int step) override {
    if (step > 0) return std::nullopt;
    for (std::size_t i = 0; i < bucket.indices.size(); ++i) {
      indices.push_back(bucket.indices[i]);
      EXPECT_TRUE(bucket.parameters[i].sizes() == bucket.gradients[i].sizes());
    }
    dtype = bucket.buffer.scalar_type();
    return all_reduce_average(group, bucket.buffer);
  }
  int iterations = 0;
  std::vector<std::size_t> indices;
  at::ScalarType dtype = at::kDouble;
};

TEST(CommunicationHook, IterationsBeginOnceAndParametersHaveTheirIndices) {
  for (const Overlap overlap : {Overlap::group, Overlap::after})
    for (const bool narrow : {false, true})
      on_ranks(2, Backend::memory, [&](const Group& group) {
        auto net = std::make_shared<Net>();
        DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}, .overlap = overlap}};
        const auto recorder = std::make_shared<Recorder>();
        if (narrow)
          ddp.set_hook(std::make_shared<CastHook>(at::kHalf, recorder));
        else
          ddp.set_hook(recorder);
        for (int i = 1; i <= 3; ++i) {
          {
            const auto guard = ddp.no_sync();
            ddp.forward(at::ones({2, 5}, at::kDouble)).sum().backward();
          }
          EXPECT_EQ(recorder->iterations, i - 1);
          ddp.forward(at::ones({2, 5}, at::kDouble)).sum().backward();
          EXPECT_EQ(recorder->iterations, i);
          EXPECT_EQ(recorder->dtype, narrow ? at::kHalf : at::kDouble);
          std::vector<std::size_t> expected;
          if (i == 1) continue;  // the buckets were planned again after this iteration
          for (const auto& bucket : ddp.plan()) expected.insert(expected.end(), bucket.begin(), bucket.end());
          EXPECT_EQ(recorder->indices, expected);
        }
      });
}

TEST(CommunicationHook, ViewsOfAnotherTensorHaveTheOffsetsOfTheGradients) {
  Company company(1, Backend::memory);
  const Group group = company.groups()[0];
  GradientBucket bucket = bucket_for(
      group,
      {at::zeros({3}), at::zeros({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast), at::zeros({})});
  bucket.buffer.copy_(at::arange(bucket.buffer.numel()));
  const auto views = bucket.views_of(at::cat({at::full({5}, -1.0F), bucket.buffer}).slice(0, 5));
  for (std::size_t i = 0; i < views.size(); ++i) {
    EXPECT_TRUE(at::equal(views[i], bucket.gradients[i]));
    EXPECT_EQ(views[i].strides(), bucket.gradients[i].strides());
    EXPECT_EQ(bucket.begin_of(i), static_cast<std::int64_t>(16 * i + (i == 2 ? 16 : 0)));
  }
}

TEST(CommunicationHook, AveragesComplexNumbers) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    at::Tensor own = gradients_of({{5}}, group.rank(), 0, at::kComplexDouble)[0];
    all_reduce_average(group, own).get();
    expect_close({own}, mean_of({{5}}, 2, 0, at::kComplexDouble));
  });
}

}  // namespace
}  // namespace weft::data_parallel::communication_hook_test
