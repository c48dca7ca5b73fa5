#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/top_k_hook.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::top_k_hook_test {
namespace {

using namespace testing;

const Shapes shapes = {{8, 6}, {5}, {}, {3, 2, 2}, {0}};

// The k elements with the largest absolute values; zeros elsewhere.
at::Tensor largest(const at::Tensor& values, double ratio) {
  const at::Tensor flat = values.flatten(), sizes = flat.abs().contiguous();
  std::vector<std::int64_t> order(static_cast<std::size_t>(flat.numel()));
  std::iota(order.begin(), order.end(), 0);
  const double* size = sizes.const_data_ptr<double>();
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return size[a] > size[b]; });
  order.resize(static_cast<std::size_t>(std::ceil(ratio * static_cast<double>(order.size()))));
  at::Tensor kept = at::zeros_like(flat);
  for (const std::int64_t i : order) kept[i] = flat[i];
  return kept.view(values.sizes());
}

TEST(TopKHook, EqualsTheSelectionInOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    Company company(ranks, Backend::memory);
    const auto groups = company.groups();
    for (const at::ScalarType dtype : {at::kDouble, at::kComplexDouble})
      for (const double ratio : {0.1, 0.5, 1.0})
        for (const bool error_feedback : {true, false}) {
          std::vector<Tensors> expected;
          std::vector<Tensors> residuals(static_cast<std::size_t>(ranks));
          for (int iteration = 0; iteration < 4; ++iteration) {
            std::vector<Tensors> sent(shapes.size());
            for (int rank = 0; rank < ranks; ++rank) {
              Tensors& own = residuals[static_cast<std::size_t>(rank)];
              const Tensors gradients = gradients_of(shapes, rank, iteration, dtype);
              if (iteration == 0 || !error_feedback) {
                own.clear();
                for (const at::Tensor& gradient : gradients) own.push_back(at::zeros_like(gradient));
              }
              for (std::size_t i = 0; i < shapes.size(); ++i) {
                const at::Tensor sum = own[i] + gradients[i];
                sent[i].push_back(largest(sum, ratio));
                own[i] = sum - sent[i].back();
              }
            }
            expected.emplace_back();
            for (const Tensors& some : sent) expected.back().push_back(mean(some));
          }
          on_ranks(groups, [&](const Group& group) {
            TopKHook hook({.ratio = ratio, .use_error_feedback = error_feedback});
            GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0, dtype));
            for (int iteration = 0; iteration < 4; ++iteration)
              expect_close(reduce(hook, group, bucket, gradients_of(shapes, group.rank(), iteration, dtype)),
                           expected[static_cast<std::size_t>(iteration)]);
            expect_same_bits(group, bucket.buffer);
          });
        }
  }
}

// Gradients, then zeros: with a ratio of 1/4 four iterations send all of a residual.
TEST(TopKHook, ErrorFeedbackEventuallySendsEverything) {
  expect_that_everything_is_sent([] { return TopKHook({.ratio = 0.25}); }, shapes, 3, 4);
}

TEST(TopKHook, ContinuesFromASavedStateInOtherBuckets) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    TopKHook whole({.ratio = 0.2}), before({.ratio = 0.2}), after({.ratio = 0.2});
    const Tensors like = gradients_of(shapes, 0, 0);
    GradientBucket bucket = bucket_for(group, like), other = bucket_for(group, like);
    InTwoBuckets two(group, like, 2);
    for (int iteration = 0; iteration < 6; ++iteration) {
      const Tensors gradients = gradients_of(shapes, group.rank(), iteration);
      const Tensors expected = reduce(whole, group, bucket, gradients);
      if (iteration == 3) copy_state(before, after);
      expect_close(iteration < 3 ? reduce(before, group, other, gradients) : two.reduce(after, gradients),
                   expected, 0);
    }
  });
}

TEST(TopKHook, SendsOtherTypesAndLayouts) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const Shapes shape = {{4, 6, 3, 3}};
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      TopKHook hook({.ratio = 1});
      const at::Tensor like = at::zeros(shape[0], dtype).contiguous(at::MemoryFormat::ChannelsLast);
      GradientBucket bucket = bucket_for(group, {like});
      const auto own = [&](int rank) { return gradients_of(shape, rank, 0, at::kFloat)[0].to(dtype); };
      expect_close(reduce(hook, group, bucket, {own(group.rank())}), {((own(0) + own(1)) / 2)}, 0.01);
    }
    CastHook narrow(at::kBFloat16, std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1}));
    TopKHook exact({.ratio = 0.1});
    GradientBucket a = bucket_for(group, gradients_of(shape, 0, 0)),
                   b = bucket_for(group, gradients_of(shape, 0, 0));
    Tensors rounded;
    for (const at::Tensor& each : gradients_of(shape, group.rank(), 0))
      rounded.push_back(each.to(at::kBFloat16).to(at::kDouble));
    expect_close(reduce(narrow, group, a, gradients_of(shape, group.rank(), 0)),
                 reduce(exact, group, b, rounded), 0.01);
  });
}

TEST(TopKHook, TrainsWithinDistributedDataParallel) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    const Options options{.bucket_bytes = {200}};
    const double exact = loss_after_training(group, nullptr, options, 0);
    const auto hook = std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1});
    EXPECT_LT(loss_after_training(group, hook, options, 0), 1.2 * exact);
  });
}

TEST(TopKHook, RefusesInvalidOptions) {
  for (const double ratio : {0.0, -1.0, 1.5, std::nan("")})
    expect_invalid([&] { TopKHook({.ratio = ratio}); },
                   "TopKHook: ratio " + std::to_string(ratio) + ", expected more than 0, at most 1");
}

}  // namespace
}  // namespace weft::data_parallel::top_k_hook_test
