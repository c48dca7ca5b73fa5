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
  constexpr int ranks = 3;
  Company company(ranks, Backend::memory);
  Tensors expected;
  for (int iteration = 0; iteration < 3; ++iteration) {
    const Tensors means = mean_of(shapes, ranks, iteration);
    for (std::size_t i = 0; i < means.size(); ++i)
      iteration == 0 ? expected.push_back(means[i]) : void(expected[i] += means[i]);
  }
  on_ranks(company.groups(), [&](const Group& group) {
    TopKHook hook({.ratio = 0.25});
    GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0));
    Tensors sums;
    for (int iteration = 0; iteration < 3 + 4; ++iteration) {
      Tensors gradients = gradients_of(shapes, group.rank(), iteration);
      if (iteration >= 3)
        for (at::Tensor& gradient : gradients) gradient.zero_();
      const Tensors results = reduce(hook, group, bucket, gradients);
      for (std::size_t i = 0; i < results.size(); ++i)
        iteration == 0 ? sums.push_back(results[i]) : void(sums[i] += results[i]);
      EXPECT_TRUE(iteration != 2 || !at::allclose(sums[0], expected[0], 1e-3, 1e-3));
    }
    expect_close(sums, expected);
  });
}

TEST(TopKHook, ContinuesFromASavedStateInOtherBuckets) {
  Company company(2, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    TopKHook whole({.ratio = 0.2}), before({.ratio = 0.2}), after({.ratio = 0.2});
    const Tensors like = gradients_of(shapes, 0, 0);
    GradientBucket bucket = bucket_for(group, like), other = bucket_for(group, like);
    const auto middle = like.begin() + 2;
    GradientBucket low = bucket_for(group, {like.begin(), middle}, 1, 0);
    GradientBucket high = bucket_for(group, {middle, like.end()}, 0, 2);
    for (int iteration = 0; iteration < 6; ++iteration) {
      const Tensors gradients = gradients_of(shapes, group.rank(), iteration);
      const Tensors expected = reduce(whole, group, bucket, gradients);
      if (iteration < 3) {
        expect_close(reduce(before, group, other, gradients), expected, 0);
        continue;
      }
      if (iteration == 3) copy_state(before, after);
      for (std::size_t i = 0; i < shapes.size(); ++i)
        (i < 2 ? low.gradients[i] : high.gradients[i - 2]).copy_(gradients[i]);
      after.begin_iteration();
      reduce(after, group, high);
      reduce(after, group, low);
      Tensors results = low.gradients;
      results.insert(results.end(), high.gradients.begin(), high.gradients.end());
      expect_close(results, expected, 0);
    }
  });
}

TEST(TopKHook, SendsOtherTypesAndLayouts) {
  Company company(2, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
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
  Company company(2, Backend::memory);
  Net teacher(7);
  on_ranks(company.groups(), [&](const Group& group) {
    std::vector<double> losses;
    for (const bool compressed : {false, true}) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
      if (compressed) ddp.set_hook(std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1}));
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 300; ++step) {
        const Batch batch = Batch::of_step(step, 2, 8).part(group.rank(), 2);
        optimizer.zero_grad();
        torch::mse_loss(ddp.forward(batch.data), teacher.forward(batch.data).detach()).backward();
        optimizer.step();
      }
      const Batch test = Batch::of_step(1000, 1, 256);
      losses.push_back(torch::mse_loss(net->forward(test.data), teacher.forward(test.data)).item<double>());
    }
    EXPECT_LT(losses[1], 1.2 * losses[0]);
  });
}

TEST(TopKHook, RefusesInvalidOptions) {
  for (const double ratio : {0.0, -1.0, 1.5, std::nan("")})
    expect_invalid([&] { TopKHook({.ratio = ratio}); },
                   "TopKHook: ratio " + std::to_string(ratio) + ", expected more than 0, at most 1");
}

}  // namespace
}  // namespace weft::data_parallel::top_k_hook_test
