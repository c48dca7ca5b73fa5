#include <weft/parallel/data_parallel/iteration_stats.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/trace/tracer.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::iteration_stats_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;

IterationStats of_buckets(std::vector<BucketStats> buckets) {
  IterationStats stats{.iteration = 3, .forward = 2ms, .backward = 10ms, .waited = 4ms};
  stats.buckets = std::move(buckets);
  stats.hook = "TopKHook";
  return stats;
}

TEST(IterationStats, BucketsInFlightAtOnceCountOnce) {
  const IterationStats stats = of_buckets({{.index = 0, .bytes = 100, .launched = 2ms, .reduced = 5ms},
                                           {.index = 1, .bytes = 50, .launched = 4ms, .reduced = 6ms},
                                           {.index = 3, .bytes = 0, .launched = 8ms, .reduced = 14ms}});
  EXPECT_EQ(stats.bytes(), 150U);
  EXPECT_EQ(stats.communication(), 10ms);
  EXPECT_EQ(stats.overlapped(), 6ms);
  EXPECT_EQ(of_buckets({}).communication(), 0ms);
}

TEST(IterationStats, TheTableNamesLateGradients) {
  const auto stats =
      of_buckets({{.index = 1, .bytes = 2048, .late = 0, .delay = 1500us, .launched = 2ms, .reduced = 5ms}});
  EXPECT_EQ(to_table(stats, {"first.weight"}),
            "iteration 3: forward 2.000 ms, backward 10.000 ms, waited 4.000 ms; communication 3.000 ms, of "
            "which 3.000 ms overlapped; 0 buckets skipped; hook TopKHook\n"
            "bucket       KiB  launched ms   reduced ms  waited longest for (ms)\n"
            "     1       2.0        2.000        5.000  first.weight (1.500)\n");
}

TEST(LateGradients, AParameterThatAlwaysDelaysItsBucketIsReturnedOnce) {
  LateGradients late;
  const auto delayed = [](std::size_t parameter, std::chrono::nanoseconds delay) {
    return of_buckets({{.index = 0, .late = 9}, {.index = 1, .late = parameter, .delay = delay}});
  };
  std::size_t found = 0;
  for (std::size_t i = 1; i <= 3 * LateGradients::iterations; ++i) {
    const auto one = late.add(delayed(5, 6ms));
    if (!one) continue;
    ++found;
    EXPECT_EQ(i, LateGradients::iterations);
    EXPECT_EQ(one->parameter, 5U);
    EXPECT_EQ(one->bucket, 1U);
    EXPECT_EQ(one->delay, 6ms);
  }
  EXPECT_EQ(found, 1U);
  // An iteration without a delay ends the sequence. Another delayed parameter starts a new one.
  for (std::size_t i = 1; i < LateGradients::iterations; ++i) EXPECT_FALSE(late.add(delayed(6, 6ms)));
  EXPECT_FALSE(late.add(delayed(6, 4ms)));
  EXPECT_FALSE(late.add(delayed(6, 6ms)));
  for (std::size_t i = 1; i < LateGradients::iterations; ++i) EXPECT_FALSE(late.add(delayed(7, 6ms)));
}

TEST(LateGradients, ShortDelaysAreNotLate) {
  LateGradients late;
  IterationStats stats = of_buckets({{.index = 0, .late = 1, .delay = 1ms}});
  stats.backward = 1500us;
  for (std::size_t i = 0; i < 2 * LateGradients::iterations; ++i) EXPECT_FALSE(late.add(stats));
}

// The gradient of one parameter waits until the others of its bucket are ready.
struct Delayed : Net {
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first(x);
    y.register_hook([](const at::Tensor&) {
      const auto until = std::chrono::steady_clock::now() + 20ms;
      while (std::chrono::steady_clock::now() < until) {
      }
    });
    return last(torch::tanh(middle(torch::tanh(y))));
  }
};

TEST(IterationReport, AppearsInFiguresTraceAndLogOfTheAgent) {
  const auto tracer = std::make_shared<rpc::Tracer>();
  std::mutex mutex;
  std::vector<std::string> warnings;
  int steps = 0;
  std::size_t bytes = 0;  // the size of the bucket
  Company company(
      1, Backend::memory, std::make_unique<test::InProcessJobStore>(), nullptr,
      [&](rpc::AgentOptions& options) {
        options.log = [&](const rpc::LogRecord& record) {
          if (record.level != rpc::LogLevel::warning) return;
          std::lock_guard lock(mutex);
          warnings.emplace_back(record.message);
        };
      },
      [&](int) {
        rpc::Layers layers = tensor::layers();
        layers.push_back(tracer->layer());
        return layers;
      });
  on_ranks(company.groups(), [&](const Group& group) {
    auto net = std::make_shared<Delayed>();
    DistributedDataParallel ddp{group, net};
    // Repeats until ten iterations in a row were not disturbed by other processes.
    const auto warned = [&] {
      std::lock_guard lock(mutex);
      return !warnings.empty();
    };
    while (!warned() && steps < 1000) ddp.forward(Batch::of_step(++steps, 1).data).sum().backward();
    const IterationStats last = ddp.last();
    ASSERT_EQ(last.buckets.size(), 1U);
    EXPECT_GE(last.buckets[0].delay, 20ms);
    EXPECT_GT(bytes = last.bytes(), (5 * 7 + 7 * 7 + 7 * 3) * sizeof(double));
    EXPECT_LE(last.buckets[0].launched, last.buckets[0].reduced);
    EXPECT_NE(ddp.last_table().find("iteration " + std::to_string(steps) + ": "), std::string::npos)
        << ddp.last_table();
    const auto figures = rpc::stats(company.agent(0)).layers;
    EXPECT_EQ(figures.at("data_parallel.iterations"), static_cast<std::uint64_t>(steps));
    EXPECT_EQ(figures.at("data_parallel.bytes"), static_cast<std::uint64_t>(steps) * last.bytes());
    EXPECT_GE(figures.at("data_parallel.backward_us"), static_cast<std::uint64_t>(steps) * 20000U);
  });
  std::size_t backwards = 0, buckets = 0;
  for (const rpc::Span& span : tracer->take().spans) {
    backwards += span.name == "backward";
    if (span.name != "bucket 0") continue;
    ++buckets;
    EXPECT_EQ(span.notes.at("bytes"), std::to_string(bytes));
    EXPECT_EQ(span.notes.at("dtype"), "Double");
  }
  EXPECT_EQ(backwards, static_cast<std::size_t>(steps));
  EXPECT_EQ(buckets, static_cast<std::size_t>(steps));
  std::lock_guard lock(mutex);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("the gradient of first."), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("has delayed bucket 0 in 10 iterations"), std::string::npos) << warnings[0];
}

}  // namespace
}  // namespace weft::data_parallel::iteration_stats_test
