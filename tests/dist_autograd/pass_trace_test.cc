// Calls in a pass are noted as others are, whether the tracer was installed before the layers or after them.
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
  using Service = rpc::Service<"test.doubler", rpc::Method<"twice", &Doubler::twice>,
                               rpc::Method<"onward", &Doubler::onward>>;
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

}  // namespace
}  // namespace weft::dist_autograd::test::pass_trace_test
