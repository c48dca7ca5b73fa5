#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::power_sgd_hook_test {
namespace {

using namespace testing;

// With rank 2 and rate 1 all of these are compressed, except the vectors and the matrix of 2 rows. Two shapes
// are equal.
const Shapes shapes = {{8, 6}, {5}, {7, 3, 2}, {8, 6}, {2, 9}, {}, {4, 2, 3, 2}, {0}};
constexpr bool compressed[] = {true, false, true, true, false, false, true, false};
constexpr PowerSgdOptions rank_2{.rank = 2, .start_iteration = 1, .min_compression_rate = 1, .seed = 5};

at::Tensor random_q(const PowerSgdOptions& options, std::size_t parameter, std::int64_t columns,
                    int iteration, at::ScalarType dtype) {
  const std::uint64_t t = options.warm_start ? 0 : static_cast<std::uint64_t>(iteration);
  auto generator = at::detail::createCPUGenerator(options.seed + parameter + (t << 20));
  return at::randn({columns, options.rank}, generator,
                   at::isComplexType(dtype) ? at::kComplexFloat : at::kFloat)
      .to(dtype);
}

// The algorithm for one matrix of all ranks, in one process. It needs no orthonormal bases: the result is the
// projection of the average on the span of P.
struct Reference {
  Tensors residuals;  // by rank
  at::Tensor q;

  at::Tensor step(const PowerSgdOptions& options, const Tensors& matrices, const at::Tensor& fresh_q) {
    Tensors sums;
    for (std::size_t rank = 0; rank < matrices.size(); ++rank)
      sums.push_back(residuals.empty() ? matrices[rank] : matrices[rank] + residuals[rank]);
    const at::Tensor average = mean(sums);
    const at::Tensor p = average.mm(options.warm_start && q.defined() ? q : fresh_q);
    const at::Tensor result = p.mm(at::linalg_pinv(p).mm(average));
    q = average.mH().mm(p);
    if (options.use_error_feedback) {
      residuals.clear();
      for (const at::Tensor& sum : sums) residuals.push_back(sum - result);
    }
    return result;
  }
};

TEST(PowerSgdHook, EqualsTheAlgorithmInOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    Company company(ranks, Backend::memory);
    const auto groups = company.groups();
    for (const at::ScalarType dtype : {at::kDouble, at::kComplexDouble})
      for (const bool error_feedback : {true, false})
        for (const bool warm_start : {true, false}) {
          PowerSgdOptions options = rank_2;
          options.use_error_feedback = error_feedback;
          options.warm_start = warm_start;
          std::vector<Tensors> expected;
          std::vector<Reference> references(shapes.size());
          for (int iteration = 0; iteration < 5; ++iteration) {
            expected.push_back(mean_of(shapes, ranks, iteration, dtype));
            for (std::size_t i = 0; iteration > 0 && i < shapes.size(); ++i) {
              if (!compressed[i]) continue;
              Tensors matrices;
              for (int rank = 0; rank < ranks; ++rank)
                matrices.push_back(gradients_of(shapes, rank, iteration, dtype)[i].flatten(1));
              const at::Tensor fresh = random_q(options, i, matrices[0].size(1), iteration, dtype);
              expected.back()[i] = references[i].step(options, matrices, fresh).view(shapes[i]);
            }
          }
          on_ranks(groups, [&](const Group& group) {
            PowerSgdHook hook(options);
            GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0, dtype));
            for (int iteration = 0; iteration < 5; ++iteration)
              expect_close(reduce(hook, group, bucket, gradients_of(shapes, group.rank(), iteration, dtype)),
                           expected[static_cast<std::size_t>(iteration)]);
            expect_same_bits(group, bucket.buffer);
          });
        }
  }
}

TEST(PowerSgdHook, BatchedCompressesTheWholeBucketAsASquare) {
  PowerSgdOptions options = rank_2;
  options.batched = true;
  options.start_iteration = 0;
  Reference reference;
  std::vector<Tensors> expected;
  for (int iteration = 0; iteration < 4; ++iteration) {
    Tensors matrices;
    for (int rank = 0; rank < 2; ++rank) {
      Tensors parts;
      for (const at::Tensor& gradient : gradients_of(shapes, rank, iteration))
        parts.push_back(gradient.flatten());
      matrices.push_back(at::constant_pad_nd(at::cat(parts), {0, 15 * 15 - 210}).view({15, 15}));
    }
    const at::Tensor square =
        reference.step(options, matrices, random_q(options, 0, 15, iteration, at::kDouble));
    // The padding has no residual.
    for (at::Tensor& residual : reference.residuals) residual.view({-1}).narrow(0, 210, 15).zero_();
    std::int64_t begin = 0;
    for (const auto& shape : shapes) {
      const std::int64_t count = c10::multiply_integers(shape);
      if (&shape == &shapes.front()) expected.emplace_back();
      expected.back().push_back(square.reshape({-1}).narrow(0, begin, count).view(shape));
      begin += count;
    }
    ASSERT_EQ(begin, 210);
  }
  on_ranks(2, Backend::memory, [&](const Group& group) {
    PowerSgdHook hook(options);
    GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0));
    for (int iteration = 0; iteration < 4; ++iteration)
      expect_close(reduce(hook, group, bucket, gradients_of(shapes, group.rank(), iteration)),
                   expected[static_cast<std::size_t>(iteration)]);
    EXPECT_EQ(hook.volume().gradients, 210);
    EXPECT_EQ(hook.volume().sent, 2 * 15 * 2);
  });
}

TEST(PowerSgdHook, CountsSentElements) {
  on_ranks(1, Backend::memory, [&](const Group& group) {
    PowerSgdHook hook(rank_2);
    GradientBucket bucket = bucket_for(group, gradients_of({{8, 6}, {5}}, 0, 0));
    reduce(hook, group, bucket, gradients_of({{8, 6}, {5}}, 0, 0));
    EXPECT_EQ(hook.volume().sent, bucket.buffer.numel());  // before start_iteration
    reduce(hook, group, bucket, gradients_of({{8, 6}, {5}}, 0, 0));
    EXPECT_EQ(hook.volume().gradients, 53);
    EXPECT_EQ(hook.volume().sent, (8 + 6) * 2 + 5);
  });
}

TEST(PowerSgdHook, CompressesOnlyByTheMinimumRate) {
  on_ranks(1, Backend::memory, [&](const Group& group) {
    // 8 x 8, rank 1: 64 / 16 = 4.
    for (const double rate : {3.9, 4.0}) {
      PowerSgdHook hook({.rank = 1, .start_iteration = 0, .min_compression_rate = rate});
      GradientBucket bucket = bucket_for(group, gradients_of({{8, 8}}, 0, 0));
      reduce(hook, group, bucket, gradients_of({{8, 8}}, 0, 0));
      EXPECT_EQ(hook.volume().sent, rate < 4 ? 16 : 64) << rate;
    }
  });
}

// Gradients are followed by zeros. Each iteration reduces the rank of the average residual by 2.
TEST(PowerSgdHook, ErrorFeedbackEventuallySendsEverything) {
  for (const bool batched : {false, true}) {
    PowerSgdOptions options = rank_2;
    options.batched = batched;
    expect_that_everything_is_sent([&] { return PowerSgdHook(options); }, shapes, 4, 12);
  }
}

TEST(PowerSgdHook, ContinuesFromASavedStateInOtherBuckets) {
  for (const bool warm_start : {true, false})
    on_ranks(2, Backend::memory, [&](const Group& group) {
      PowerSgdOptions options = rank_2;
      options.warm_start = warm_start;
      PowerSgdHook whole(options), before(options), after(options), parted(options);
      const Tensors like = gradients_of(shapes, 0, 0);
      GradientBucket bucket = bucket_for(group, like), other = bucket_for(group, like);
      InTwoBuckets two(group, like, 3);
      for (int iteration = 0; iteration < 6; ++iteration) {
        const Tensors gradients = gradients_of(shapes, group.rank(), iteration);
        const Tensors expected = reduce(whole, group, bucket, gradients);
        if (iteration == 3) copy_state(before, after), copy_state(before, parted);
        expect_close(reduce(iteration < 3 ? before : after, group, other, gradients), expected, 0);
        if (iteration >= 3) expect_close(two.reduce(parted, gradients), expected);
      }
    });
}

TEST(PowerSgdHook, RefusesTheStateOfAnotherModule) {
  on_ranks(1, Backend::memory, [&](const Group& group) {
    PowerSgdHook hook({.start_iteration = 0}), other({.start_iteration = 0});
    GradientBucket bucket = bucket_for(group, gradients_of({{9, 9}}, 0, 0));
    reduce(hook, group, bucket, gradients_of({{9, 9}}, 0, 0));
    copy_state(hook, other);
    GradientBucket different = bucket_for(group, gradients_of({{9, 10}}, 0, 0));
    expect_invalid([&] { reduce(other, group, different, gradients_of({{9, 10}}, 0, 0)); },
                   "Residuals: the residual of parameter 0 has the shape [9, 9], expected [9, 10]");
  });
}

// The gradients of a parameter that is unused at first, and of an input that is always zero.
TEST(PowerSgdHook, RecoversFromZeroGradients) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    PowerSgdHook hook({.rank = 1, .start_iteration = 0, .min_compression_rate = 1});
    GradientBucket bucket = bucket_for(group, gradients_of({{6, 6}}, 0, 0));
    const at::Tensor zero = at::zeros({6, 6}, at::kDouble);
    expect_close(reduce(hook, group, bucket, {zero}), {zero});
    at::Tensor gradient = at::ones({6, 6}, at::kDouble);
    gradient.select(1, 0).zero_();
    expect_close(reduce(hook, group, bucket, {gradient}), {gradient});  // of rank 1
  });
}

TEST(PowerSgdHook, KeepsTheLayoutOfParameters) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const Shapes shape = {{4, 6, 3, 3}};
    PowerSgdHook dense(rank_2), last(rank_2);
    GradientBucket a = bucket_for(group, gradients_of(shape, 0, 0));
    GradientBucket b =
        bucket_for(group, {gradients_of(shape, 0, 0)[0].contiguous(at::MemoryFormat::ChannelsLast)});
    ASSERT_FALSE(b.gradients[0].is_contiguous());
    for (int iteration = 0; iteration < 3; ++iteration) {
      const Tensors gradients = gradients_of(shape, group.rank(), iteration);
      expect_close(reduce(last, group, b, gradients), reduce(dense, group, a, gradients));
    }
  });
}

TEST(PowerSgdHook, RunsWithinACastHook) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      PowerSgdHook exact(rank_2);
      CastHook narrow(dtype, std::make_shared<PowerSgdHook>(rank_2));
      GradientBucket a = bucket_for(group, gradients_of(shapes, 0, 0)),
                     b = bucket_for(group, gradients_of(shapes, 0, 0));
      for (int iteration = 0; iteration < 3; ++iteration) {
        const Tensors gradients = gradients_of(shapes, group.rank(), iteration);
        const Tensors results = reduce(narrow, group, b, gradients);
        expect_close(results, reduce(exact, group, a, gradients), dtype == at::kHalf ? 0.02 : 0.15);
        for (const at::Tensor& result : results)
          EXPECT_TRUE(at::equal(result, result.to(dtype).to(at::kDouble)));
      }
    }
  });
}

// Within DistributedDataParallel: results do not depend on the buckets, which change after the first
// backward.
TEST(PowerSgdHook, ResultsDoNotDependOnTheBucketPlan) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    std::vector<Tensors> results;
    for (const std::size_t bytes : {std::size_t{200}, std::size_t{1} << 20}) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {bytes}}};
      ddp.set_hook(std::make_shared<PowerSgdHook>(
          PowerSgdOptions{.rank = 1, .start_iteration = 0, .min_compression_rate = 1}));
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        train_step(optimizer, ddp, Batch::of_step(step, 2).part(group.rank(), 2));
      }
      results.push_back(values_of(*net));
    }
    expect_close(results[0], results[1]);
  });
}

// The resumed run has the first bucket plan again. Its middle layer is not reached in some iterations.
TEST(PowerSgdHook, ATrainingRunIsResumed) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const PowerSgdOptions options{.rank = 1, .start_iteration = 2, .min_compression_rate = 1};
    struct Run {
      std::shared_ptr<Net> net = std::make_shared<Net>();
      std::shared_ptr<PowerSgdHook> hook;
      DistributedDataParallel<Net> ddp;
      Run(const Group& group, const PowerSgdOptions& options)
          : hook(std::make_shared<PowerSgdHook>(options)), ddp(group, net, Options{.bucket_bytes = {200}}) {
        ddp.set_hook(hook);
      }
      void train(int rank, int first, int last) {
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        for (int step = first; step < last; ++step) {
          const Batch batch = Batch::of_step(step, 2).part(rank, 2);
          optimizer.zero_grad();
          torch::mse_loss(ddp.forward(batch.data, step % 3 != 1), batch.target).backward();
          optimizer.step();
        }
      }
    };
    Run whole(group, options), before(group, options), after(group, options);
    whole.train(group.rank(), 0, 12);
    before.train(group.rank(), 0, 6);
    {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < before.net->parameters().size(); ++i)
        after.net->parameters()[i].copy_(before.net->parameters()[i]);
    }
    copy_state(*before.hook, *after.hook);
    after.train(group.rank(), 6, 12);
    expect_close(values_of(*after.net), values_of(*whole.net));
  });
}

TEST(PowerSgdHook, TrainsLikeAllReduce) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    const Batch test = Batch::of_step(1000, 1, 256);
    const double first = torch::mse_loss(Net().forward(test.data), Net(7).forward(test.data)).item<double>();
    const double exact = loss_after_training(group, nullptr, {}, 0.9);
    const auto hook = std::make_shared<PowerSgdHook>(
        PowerSgdOptions{.rank = 1, .start_iteration = 10, .min_compression_rate = 1});
    const double compressed = loss_after_training(group, hook, {}, 0.9);
    EXPECT_LT(hook->volume().sent, hook->volume().gradients * 2 / 3);
    EXPECT_LT(exact, first / 50);
    EXPECT_LT(compressed, 1.5 * exact);
  });
}

TEST(PowerSgdHook, RefusesInvalidOptions) {
  expect_invalid([] { PowerSgdHook({.rank = 0}); }, "PowerSgdHook: rank 0, expected 1 or more");
  expect_invalid([] { PowerSgdHook({.start_iteration = -1}); },
                 "PowerSgdHook: start_iteration -1, expected 0 or more");
  expect_invalid([] { PowerSgdHook({.min_compression_rate = 0}); },
                 "PowerSgdHook: min_compression_rate 0.000000, expected more than 0");
}

}  // namespace
}  // namespace weft::data_parallel::power_sgd_hook_test
