// Sources that get no gradients.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <weft/rpc/core/error.h>

namespace weft::dist_autograd::engine_abandon_test {
namespace {

using testing::leaf;
using testing::MapSink;
using testing::numbers;
using testing::source_of;

// x and h are successors of both sources. w is a successor of the second source alone.
struct TwoSources : ::testing::Test {
  at::Tensor x = leaf({4}, 1), w = leaf({4}, 2);
  at::Tensor h = x.sin(), a = h.exp(), b = h * w;
  NodePtr first = source_of("first", {a}), second = source_of("second", {b});
  MapSink sink;
  NodeExecutor executor{sink, {}};

  void SetUp() override {
    executor.expect(first);
    executor.expect(second);
    executor.plan();
  }
};

TEST_F(TwoSources, WithoutGradientsNoNodeRuns) {
  executor.abandon(first);
  EXPECT_FALSE(executor.complete());
  executor.abandon(second);
  EXPECT_TRUE(executor.complete());
  EXPECT_EQ(sink.calls, 0);
}

TEST_F(TwoSources, OnlyWaitingSourcesMayBeAbandoned) {
  executor.deliver(first, {numbers({4}, 3)});
  EXPECT_THROW(executor.abandon(first), rpc::Error);
  executor.abandon(second);
  EXPECT_THROW(executor.abandon(second), rpc::Error);
  EXPECT_THROW(executor.deliver(second, {numbers({4}, 3)}), rpc::Error);
  executor.run();
  EXPECT_TRUE(executor.complete());
}

}  // namespace
}  // namespace weft::dist_autograd::engine_abandon_test
