// Sources that get no gradients. The nodes that wait for them run with the gradients of other sources.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <weft/rpc/core/error.h>

#include <set>

namespace weft::dist_autograd::engine_abandon_test {
namespace {

using testing::expect_identical;
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

TEST_F(TwoSources, ASourceWithoutGradientsDoesNotBlockTheOther) {
  executor.deliver(first, {numbers({4}, 3)});
  executor.run();
  EXPECT_TRUE(executor.waiting()) << "the node of h has part of its gradients";
  EXPECT_EQ(sink.calls, 0);
  executor.abandon(second);
  EXPECT_FALSE(executor.waiting());
  EXPECT_EQ(sink.calls, 0) << "abandon runs nothing";
  executor.run();
  EXPECT_TRUE(executor.complete());
  EXPECT_FALSE(sink[w].defined()) << "a node where nothing comes does not run";
  auto again = leaf({4}, 1);
  expect_identical(sink[x], torch::autograd::grad({again.sin().exp()}, {again}, {numbers({4}, 3)})[0], "x");
}

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

TEST_F(TwoSources, WaitingNodesAndTheirSuccessorsAreVisitedOnce) {
  std::multiset<std::string> seen;
  const auto note = [&](torch::autograd::Node& node) { seen.insert(node.name()); };
  executor.visit_waiting(note);
  EXPECT_TRUE(seen.empty()) << "nothing has arrived anywhere";
  executor.deliver(first, {numbers({4}, 3)});
  executor.run();
  executor.visit_waiting(note);
  EXPECT_EQ(seen.count(h.grad_fn()->name()), 1U);
  EXPECT_EQ(seen.count(b.grad_fn()->name()), 0U) << "it has none of its gradients";
  const std::size_t before = seen.size();
  executor.visit_waiting(note);
  EXPECT_EQ(seen.size(), before);
  executor.visit_from(second, note);
  EXPECT_EQ(seen.count("second"), 1U);
  EXPECT_EQ(seen.count(b.grad_fn()->name()), 1U);
  EXPECT_EQ(seen.count(h.grad_fn()->name()), 1U) << "each node once";
}

}  // namespace
}  // namespace weft::dist_autograd::engine_abandon_test
