// Traces of distributed autograd. Calls in a pass have spans like other calls, whether the tracer was
// installed before or after the layers. Backwards and operators have spans if the program requests them.
#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/remote_operator.h>
#include <weft/rpc/tensor/operator_trace.h>
#include <weft/rpc/trace/tracer.h>

#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_trace_test {
namespace {

using weft::test::got;

struct Doubler {
  at::Tensor twice(at::Tensor x) { return 2 * x; }
  rpc::Task<at::Tensor> onward(rpc::CallContext& call, at::Tensor x) {
    co_return co_await next->with(call).call<&Doubler::twice>(x);
  }
  // Runs a backward of the caller's pass on this worker.
  rpc::Task<void> backward(rpc::CallContext& call, at::Tensor x) {
    co_await Pass::of(call).backward(twice(x).sum());
  }
  at::Tensor fail_backward(at::Tensor x) { return FailingBackward::apply(x); }
  using Service =
      rpc::Service<"test.doubler", rpc::Method<"twice", &Doubler::twice>,
                   rpc::Method<"onward", &Doubler::onward>, rpc::Method<"backward", &Doubler::backward>,
                   rpc::Method<"fail_backward", &Doubler::fail_backward>>;
  std::optional<rpc::Peer> next;
};

TEST(PassTrace, CallsHaveSpansInEitherOrderOfTheLayers) {
  const std::vector<std::string> names{"a", "b", "c"};
  std::map<std::string, std::shared_ptr<rpc::Tracer>> tracers;
  std::map<std::string, std::shared_ptr<Doubler>> doublers;
  weft::test::Cluster cluster{{}};
  for (const std::string& name : names) {
    tracers[name] = std::make_shared<rpc::Tracer>();
    rpc::Layers all = layers();
    all.insert(name == "b" ? all.begin() : all.end(), tracers[name]->layer());
    doublers[name] = std::make_shared<Doubler>();
    cluster.add(name, std::move(all)).serve(doublers[name]);
  }
  doublers["b"]->next = cluster.peer("b", "c");
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  {
    Pass pass{cluster["a"]};
    got(pass.backward(got(cluster.peer("a", "b").call<&Doubler::onward>(pass, x)).sum()));
    expect_equal(pass.gradient(x), 2 * at::ones_like(x), "x");
  }
  const auto a = tracers["a"]->take().spans, b = tracers["b"]->take().spans, c = tracers["c"]->take().spans;
  ASSERT_EQ(a.size(), 1U) << "weft's own calls are not noted";
  ASSERT_EQ(b.size(), 2U);
  ASSERT_EQ(c.size(), 1U);
  EXPECT_EQ(a[0].name, "test.doubler.onward");
  EXPECT_EQ(a[0].peer, "b");
  EXPECT_EQ(b[1].parent, a[0].id);
  EXPECT_TRUE(b[1].served);
  EXPECT_EQ(b[0].name, "test.doubler.twice");
  EXPECT_EQ(b[0].parent, b[1].id) << "the call that the handler made";
  EXPECT_EQ(c[0].parent, b[0].id);
  EXPECT_EQ(c[0].trace_low, a[0].trace_low);
}

// Three workers whose backwards and operators are traced, except those that a test excludes.
class BackwardTrace : public ::testing::Test {
 protected:
  void start(const std::set<std::string>& untraced = {}) {
    for (const std::string name : {"a", "b", "c"}) {
      rpc::Layers all = layers();
      if (!untraced.contains(name)) {
        tracers[name] = std::make_shared<rpc::Tracer>(rpc::TracerOptions{.own_methods = backward_methods()});
        all.push_back(tracers[name]->layer());
        all.push_back(tensor::trace_operators());
      }
      auto doubler = std::make_shared<Doubler>();
      cluster.add(name, std::move(all)).serve(doubler);
      if (name == "c") doublers.at("b")->next = cluster.peer("b", "c");
      doublers[name] = doubler;
    }
  }
  std::vector<rpc::Span> take(const std::string& name) { return tracers.at(name)->take().spans; }

  std::map<std::string, std::shared_ptr<rpc::Tracer>> tracers;
  std::map<std::string, std::shared_ptr<Doubler>> doublers;
  weft::test::Cluster cluster{{}};
};

rpc::Span one(const std::vector<rpc::Span>& spans, const std::string& name, bool served = false) {
  rpc::Span found;
  std::size_t count = 0;
  for (const rpc::Span& span : spans)
    if (span.name == name && span.served == served) found = span, ++count;
  EXPECT_EQ(count, 1U) << name;
  return found;
}

TEST_F(BackwardTrace, HasMessagesNodesAndOperatorsOfEveryWorker) {
  start();
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  Pass pass{cluster["a"]};
  const at::Tensor loss = got(cluster.peer("a", "b").call<&Doubler::onward>(pass, x)).sum();
  for (const std::string name : {"a", "b", "c"}) take(name);
  got(pass.backward(loss));
  const auto a = take("a"), b = take("b"), c = take("c");

  const std::string gradients = "weft.autograd.gradients", nodes = "backward nodes";
  const rpc::Span whole = one(a, "backward"), to_b = one(a, gradients);
  EXPECT_EQ(whole.parent, 0U);
  EXPECT_TRUE(whole.work);
  // The backward runs from the loss at a to b, to c and its node, and returns to b and to x at a.
  const auto at_c = one(c, nodes);
  EXPECT_EQ(one(c, "MulBackward1").parent, at_c.id);
  EXPECT_EQ(one(c, "SendBackward(to b)").parent, at_c.id);
  EXPECT_EQ(one(c, "RecvBackward(from b)").parent, at_c.id);
  const auto served_by_c = one(c, gradients, true);
  EXPECT_EQ(at_c.parent, served_by_c.id);
  const rpc::Span sum = one(a, "SumBackward0");
  std::size_t under_whole = 0, from_b = 0;
  for (const rpc::Span& span : a)
    if (span.name == nodes && span.parent == whole.id) {
      ++under_whole;
      EXPECT_EQ(sum.parent, span.id);
      EXPECT_EQ(to_b.parent, span.id);
      EXPECT_LE(whole.begin, span.begin);
      EXPECT_LE(span.end, whole.end);
    }
  EXPECT_EQ(under_whole, 1U);
  for (const rpc::Span& span : b) {
    EXPECT_EQ(span.trace_low, whole.trace_low) << span.name;
    if (span.name == gradients && !span.served && span.id == served_by_c.parent) ++from_b;
  }
  EXPECT_EQ(from_b, 1U) << "the message that c got is one that b sent";
  for (const rpc::Span& span : c) EXPECT_EQ(span.trace_low, whole.trace_low) << span.name;
}

TEST_F(BackwardTrace, OperatorsOfAForwardAreChildrenOfTheirCall) {
  start();
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  Pass pass{cluster["a"]};
  got(cluster.peer("a", "b").call<&Doubler::twice>(pass, x));
  got(cluster.peer("a", "b").call<&Doubler::onward>(pass, x));
  const auto b = take("b"), c = take("c");
  for (const auto& [spans, method] :
       {std::pair(b, "test.doubler.twice"), std::pair(c, "test.doubler.twice")}) {
    const rpc::Span call = one(spans, method, true);
    // 2 * x: an operator that runs an operator of the same name.
    const auto under_call = std::count_if(spans.begin(), spans.end(), [&](const rpc::Span& span) {
      return span.name == "aten::mul" && span.parent == call.id && span.trace_low == call.trace_low;
    });
    EXPECT_EQ(under_call, 1);
  }
}

TEST_F(BackwardTrace, ContinuesAcrossAWorkerWithoutATracer) {
  start({"b"});
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  Pass pass{cluster["a"]};
  const at::Tensor loss = got(cluster.peer("a", "b").call<&Doubler::onward>(pass, x)).sum();
  take("c");
  got(pass.backward(loss));
  const rpc::Span whole = one(take("a"), "backward"), nodes = one(take("c"), "backward nodes");
  EXPECT_EQ(nodes.trace_low, whole.trace_low);
  EXPECT_EQ(nodes.trace_high, whole.trace_high);
}

TEST_F(BackwardTrace, BelongsToTheCallWhoseHandlerStartedIt) {
  start();
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  Pass pass{cluster["a"]};
  got(cluster.peer("a", "b").call<&Doubler::backward>(pass, x));
  expect_equal(pass.gradient(x), 2 * at::ones_like(x), "x");
  const auto b = take("b");
  EXPECT_EQ(one(b, "backward").parent, one(b, "test.doubler.backward", true).id);
}

TEST_F(BackwardTrace, ReportsItsError) {
  start();
  const at::Tensor x = at::ones({2, 2}, at::kDouble).requires_grad_();
  Pass pass{cluster["a"]};
  const at::Tensor loss = got(cluster.peer("a", "b").call<&Doubler::fail_backward>(pass, x)).sum();
  EXPECT_THROW(got(pass.backward(loss)), rpc::Error);
  EXPECT_FALSE(one(take("a"), "backward").error.empty());
  EXPECT_EQ(one(take("b"), "backward nodes").error, "handler_failed");
}

// The operators run on another worker, and on the caller itself.
TEST_F(BackwardTrace, HasOperatorsWithRemoteResults) {
  start();
  for (const std::string at : {"b", "a"}) {
    tensor::allow_operators(cluster[at], {"aten::neg"});
    const at::Tensor x = at::ones({2});
    const auto result = remote_operator(cluster.peer("a", at), "aten::neg", x);
    got(result.to_here());
    rpc::Span made, served, ran;
    weft::test::eventually("the operator and both sides of its call are noted", [&] {
      for (const std::string name : {"a", "b"})
        for (const rpc::Span& span : take(name))
          if (span.name == "aten::neg") (span.work ? ran : span.served ? served : made) = span;
      return made.id != 0 && served.id != 0 && ran.id != 0;
    });
    EXPECT_EQ(made.peer, at);
    EXPECT_EQ(served.parent, made.id);
    EXPECT_EQ(ran.parent, served.id);
  }
}

}  // namespace
}  // namespace weft::dist_autograd::test::pass_trace_test
