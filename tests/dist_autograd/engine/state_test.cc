// States of NodeExecutor: sources and deliveries, wrong use, failures.
#include <torch/torch.h>

#include "tests/dist_autograd/engine/support.h"

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

namespace weft::dist_autograd::engine_state_test {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using testing::expect_identical;
using testing::Fail;
using testing::Graph;
using testing::leaf;
using testing::MapSink;
using testing::message_of;
using testing::numbers;
using testing::source_of;

std::optional<ErrorKind> kind_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

TEST(EngineState, ASourceMayAlsoHaveAPredecessor) {
  auto x = leaf({4}, 1);
  auto inner = source_of("inner", {x.sin()});
  // The gradient function of the tensor is the source itself.
  auto received = numbers({4}, 2);
  torch::autograd::impl::set_gradient_edge(received, {inner, 0});
  auto y = received.exp();
  MapSink sink;
  NodeExecutor executor(sink, {});
  executor.expect(inner);
  executor.add_root(y, numbers({4}, 3));
  executor.plan();
  executor.run();
  EXPECT_FALSE(executor.complete());
  executor.deliver(inner, {numbers({4}, 4)});
  executor.run();
  EXPECT_TRUE(executor.complete());
  const auto at_inner = numbers({4}, 3) * numbers({4}, 2).exp() + numbers({4}, 4);
  EXPECT_TRUE(at::allclose(sink[x], at_inner * numbers({4}, 1).cos(), 1e-13, 1e-13));
}

TEST(EngineState, ANodeMayDeliverToASource) {
  auto x = leaf({4}, 1);
  auto h = x.sin();
  auto y = h.detach().requires_grad_().cos();  // as if h had been sent to another worker and returned
  MapSink sink;
  NodeExecutor executor(sink, {});
  auto source = source_of("send", {h});
  executor.expect(source);
  executor.add_root(y, numbers({4}, 2));
  y.register_hook([&](const at::Tensor& gradient) {
    executor.deliver(source, {gradient});
    EXPECT_EQ(kind_of([&] { executor.run(); }), ErrorKind::failed_precondition);
  });
  executor.plan();
  executor.run();
  EXPECT_TRUE(executor.complete());
  expect_identical(sink[x], numbers({4}, 2) * numbers({4}, 1).cos(), "x");
}

TEST(EngineState, BlockedNamesTheSourcesWithoutDelivery) {
  auto x = leaf({4}, 1);
  MapSink sink;
  NodeExecutor executor(sink, {});
  auto b = source_of("send b", {x.sin()}), a = source_of("send a", {x.sin()}),
       c = source_of("send c", {x.sin()});
  for (const auto& source : {b, a, c}) executor.expect(source);
  executor.plan();
  EXPECT_EQ(executor.blocked(), (std::vector<std::string>{"send a", "send b", "send c"}));
  executor.deliver(b, {numbers({4}, 2)});
  executor.run();
  EXPECT_EQ(executor.blocked(), (std::vector<std::string>{"send a", "send c"}));
}

TEST(EngineState, ReachedNamesEachNodeOnce) {
  auto x = leaf({4}, 1);
  auto h = x.sin(), y = h * x, z = h.cos();
  MapSink sink;
  std::vector<torch::autograd::Node*> reached;
  NodeExecutor executor(sink, {}, [&](torch::autograd::Node& node) { reached.push_back(&node); });
  executor.add_root(y, numbers({4}, 2));
  EXPECT_EQ(reached.size(), 3u);
  auto source = source_of("send", {z});
  executor.expect(source);
  EXPECT_EQ(reached.size(), 5u);
  std::sort(reached.begin(), reached.end());
  EXPECT_EQ(std::unique(reached.begin(), reached.end()), reached.end());
}

TEST(EngineState, AnEmptyPlanIsComplete) {
  MapSink sink;
  NodeExecutor executor(sink, {});
  EXPECT_FALSE(executor.complete());
  executor.plan();
  EXPECT_TRUE(executor.complete());
  executor.run();
}

TEST(EngineState, WrongUseFailsAndChangesNothing) {
  auto x = leaf({4}, 1);
  auto h = x.sin();
  auto source = source_of("send", {h}), stranger = source_of("stranger", {h});
  MapSink sink;
  NodeExecutor executor(sink, {});
  const auto gradient = numbers({4}, 2);

  EXPECT_EQ(kind_of([&] { executor.run(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {gradient}); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.expect({}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.add_root({}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.add_root(gradient, gradient); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.add_root(h); }), ErrorKind::invalid_argument);  // not a scalar
  EXPECT_EQ(kind_of([&] { executor.add_root(h, numbers({3}, 2)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.add_root(h, numbers({5, 4}, 2)); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.add_root(h, at::complex(gradient, gradient)); }),
            ErrorKind::invalid_argument);
  executor.expect(source);
  EXPECT_EQ(kind_of([&] { executor.expect(source); }), ErrorKind::invalid_argument);

  executor.plan();
  EXPECT_EQ(kind_of([&] { executor.plan(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.expect(stranger); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.add_root(h, gradient); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.deliver(stranger, {gradient}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.deliver({}, {gradient}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {gradient, gradient}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {numbers({2, 4}, 2)}); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {gradient.to(at::kMeta)}); }),
            ErrorKind::invalid_argument);
  executor.deliver(source, {gradient});
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {gradient}); }), ErrorKind::failed_precondition);
  EXPECT_EQ(sink.calls, 0) << "deliver runs nothing";
  executor.run();
  EXPECT_TRUE(executor.complete());
  expect_identical(sink[x], gradient * numbers({4}, 1).cos(), "x");
  EXPECT_EQ(kind_of([&] { executor.deliver(source, {gradient}); }), ErrorKind::failed_precondition);
}

TEST(EngineState, AnErrorOfANodeFailsTheExecutorAndFreesTheGraph) {
  auto x = leaf({4}, 1), w = leaf({4}, 2);
  c10::weak_intrusive_ptr<c10::TensorImpl> saved(c10::intrusive_ptr<c10::TensorImpl>{});
  MapSink sink;
  NodeExecutor executor(sink, {.retain_graph = true});
  NodePtr late;
  {
    auto factor = numbers({4}, 3);
    saved = c10::weak_intrusive_ptr<c10::TensorImpl>(factor.getIntrusivePtr());
    auto h = x.sin() * factor;
    executor.add_root(Fail::apply(h).sin(), numbers({4}, 4));
    late = source_of("late", {w.sin()});
    executor.expect(late);
    executor.plan();
  }
  ASSERT_FALSE(saved.expired());
  EXPECT_EQ(message_of([&] { executor.run(); }), "no luck");
  EXPECT_TRUE(executor.failed());
  EXPECT_FALSE(executor.complete());
  EXPECT_TRUE(saved.expired()) << "the graph is freed at once";
  EXPECT_EQ(sink.calls, 0);
  EXPECT_TRUE(executor.blocked().empty());
  EXPECT_EQ(kind_of([&] { executor.run(); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { executor.deliver(late, {numbers({4}, 5)}); }), ErrorKind::failed_precondition);
}

TEST(EngineState, ErrorsOfTheSinkAndOfHooksFailTheExecutor) {
  struct Full : GradientSink {
    void accumulate(const at::Tensor&, at::Tensor, std::size_t) override { throw std::runtime_error("full"); }
  };
  auto x = leaf({4}, 1);
  Full full;
  NodeExecutor sunk(full, {});
  sunk.add_root(x.sin(), numbers({4}, 2));
  sunk.plan();
  EXPECT_EQ(message_of([&] { sunk.run(); }), "full");
  EXPECT_TRUE(sunk.failed());

  auto y = x.sin();
  y.register_hook([](const at::Tensor& g) { return g.sum(); });  // of another shape: LibTorch refuses it
  MapSink sink;
  NodeExecutor hooked(sink, {});
  hooked.add_root(y, numbers({4}, 2));
  hooked.plan();
  EXPECT_NE(message_of([&] { hooked.run(); }), "");
  EXPECT_TRUE(hooked.failed());
}

TEST(EngineState, ReleasesTheGraphWhenComplete) {
  auto x = leaf({4}, 1);
  MapSink sink;
  NodeExecutor executor(sink, {.retain_graph = true});
  c10::weak_intrusive_ptr<c10::TensorImpl> saved(c10::intrusive_ptr<c10::TensorImpl>{});
  {
    auto factor = numbers({4}, 3);
    saved = c10::weak_intrusive_ptr<c10::TensorImpl>(factor.getIntrusivePtr());
    executor.add_root(x * factor, numbers({4}, 2));
  }
  executor.plan();
  EXPECT_FALSE(saved.expired());
  executor.run();
  EXPECT_TRUE(saved.expired());
}

// --- Sources that get no gradients ---

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
}  // namespace weft::dist_autograd::engine_state_test
