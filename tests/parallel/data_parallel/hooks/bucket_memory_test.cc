#include <weft/parallel/data_parallel/hooks/bucket_memory.h>

#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>
#include <weft/parallel/data_parallel/hooks/quantization_hook.h>
#include <weft/parallel/data_parallel/hooks/top_k_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::bucket_memory_test {
namespace {

using namespace testing;

TEST(BucketMemory, LivesAsLongAsTheBufferOfItsBucket) {
  BucketMemory<std::shared_ptr<int>> memory;
  at::Tensor one = at::zeros({4}), two = at::zeros({4});
  memory.of(one) = std::make_shared<int>(1);
  memory.of(two) = std::make_shared<int>(2);
  EXPECT_EQ(*memory.of(one), 1);
  EXPECT_EQ(*memory.of(two), 2);
  const std::weak_ptr<int> of_one = memory.of(one), of_two = memory.of(two);
  one.reset();
  EXPECT_EQ(memory.of(at::zeros({4})), nullptr);
  EXPECT_TRUE(of_one.expired());
  EXPECT_FALSE(of_two.expired());
}

using MakeHook = std::function<std::shared_ptr<CommunicationHook>()>;

// The buckets of two passes have the same index and parameters. Their steps alternate.
TEST(BucketMemory, HooksReduceTwoBucketsOfOneIndexAtATime) {
  const std::vector<MakeHook> hooks{
      [] { return std::make_shared<CastHook>(at::kBFloat16); },
      [] { return std::make_shared<CastHook>(at::kBFloat16, std::make_shared<QuantizationHook>()); },
      [] { return std::make_shared<QuantizationHook>(); },
      [] { return std::make_shared<TopKHook>(TopKOptions{.ratio = 0.5}); },
      [] { return std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0}); },
      [] { return std::make_shared<AdasumHook>(); },
  };
  const Shapes shapes{{9, 8}, {5}};
  on_ranks(2, Backend::memory, [&](const Group& group) {
    for (const MakeHook& make : hooks) {
      const auto shared = make();
      std::vector<GradientBucket> buckets;
      std::vector<Tensors> expected;
      for (int pass = 0; pass < 2; ++pass) {
        const Tensors gradients = gradients_of(shapes, group.rank(), pass);
        GradientBucket alone = bucket_for(group, gradients);
        expected.push_back(reduce(*make(), group, alone, gradients));
        buckets.push_back(bucket_for(group, gradients));
        for (std::size_t i = 0; i < gradients.size(); ++i) buckets.back().gradients[i].copy_(gradients[i]);
      }
      shared->begin_iteration();
      std::vector<bool> over(2);
      for (int step = 0; !(over[0] && over[1]); ++step)
        for (std::size_t pass = 0; pass < 2; ++pass) {
          if (over[pass]) continue;
          auto started = shared->run(group, buckets[pass], step);
          over[pass] = !started;
          if (started) std::move(*started).get();
        }
      for (std::size_t pass = 0; pass < 2; ++pass) {
        SCOPED_TRACE(shared->name() + ", pass " + std::to_string(pass));
        expect_close(buckets[pass].gradients, expected[pass]);
      }
    }
  });
}

}  // namespace
}  // namespace weft::data_parallel::bucket_memory_test
