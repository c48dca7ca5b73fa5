// Compares 200 random graphs over 2 to 4 workers, with shared weights, hooks and cycles between workers, with
// the same graph in one process. The test prints a failing seed. WEFT_AUTOGRAD_SEED=n runs that seed alone.
#include <weft/dist_autograd/pass.h>

#include <cstdlib>
#include <random>

#include "tests/dist_autograd/pass_support.h"

namespace weft::dist_autograd::test::random_graph_test {
namespace {

at::Tensor combine(std::int64_t op, bool hook, const at::Tensor& w, const at::Tensor& a,
                   const at::Tensor& b) {
  at::Tensor out;
  switch (op) {
    case 0:
      out = (a + b).mm(w).tanh();
      break;
    case 1:
      out = a * b.sigmoid() + w;
      break;
    case 2:
      out = a.mm(w) - b * 0.5;
      break;
    default:
      out = a.sin() + b.mm(w).cos();
      break;
  }
  if (hook) out.register_hook([](at::Tensor g) { return g * 1.5; });
  return out;
}

struct GraphNode {
  explicit GraphNode(at::Tensor initial) : w(initial.clone().set_requires_grad(true)) {}
  at::Tensor w;
  at::Tensor apply(std::int64_t op, bool hook, at::Tensor a, at::Tensor b) {
    return combine(op, hook, w, a, b);
  }
  at::Tensor gradient(rpc::CallContext& call, PassId pass) {
    const auto known = AutogradLayer::of(*call.host())->find_if_known(pass);
    return known == nullptr ? at::Tensor() : known->gradient(w);
  }
  using Service =
      rpc::Service<"test.graph", rpc::Constructor<at::Tensor>, rpc::Method<"apply", &GraphNode::apply>,
                   rpc::Method<"gradient", &GraphNode::gradient>>;
};

struct Step {
  std::size_t owner, a, b;
  std::int64_t op;
  bool hook, fetch;  // fetch: the driver takes the value and uses it itself
};

void run_seed(Cluster& cluster, unsigned seed, bool defer_weights) {
  SCOPED_TRACE("seed " + std::to_string(seed) + (defer_weights ? ", deferred" : ""));
  std::mt19937 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  torch::manual_seed(seed);
  const std::size_t workers = 2 + below(3), inputs = 1 + below(3), steps = 3 + below(10);
  std::vector<at::Tensor> weights, given;
  for (std::size_t i = 0; i < workers; ++i) weights.push_back(matrix(4));
  for (std::size_t i = 0; i < inputs; ++i) given.push_back(matrix(4));
  std::vector<Step> plan;
  for (std::size_t i = 0; i < steps; ++i)
    plan.push_back({below(workers), below(inputs + i), below(inputs + i), static_cast<std::int64_t>(below(4)),
                    below(3) == 0, below(4) == 0});
  std::vector<bool> used(inputs + steps, false);
  for (const Step& step : plan) used[step.a] = used[step.b] = true;

  // Runs the graph in one process.
  std::vector<at::Tensor> local_weights, local;
  for (const auto& w : weights) local_weights.push_back(w.clone().requires_grad_());
  for (const auto& x : given) local.push_back(x.clone().requires_grad_());
  for (const Step& step : plan)
    local.push_back(combine(step.op, step.hook, local_weights[step.owner], local[step.a], local[step.b]));
  at::Tensor local_loss = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < local.size(); ++i)
    if (!used[i]) local_loss = local_loss + local[i].square().sum();
  local_loss.backward();

  // Runs the graph over the workers. worker 0 starts the pass and also owns a node.
  std::vector<rref::RRef<GraphNode>> nodes;
  for (std::size_t i = 0; i < workers; ++i)
    nodes.push_back(rref::create<GraphNode>(cluster.peer(0, i), weights[i]));
  Pass pass{cluster[0]};
  struct Value {
    at::Tensor here;
    rref::RRef<at::Tensor> there;
  };
  std::vector<Value> values;
  for (const auto& x : given) values.push_back({x.clone().requires_grad_(), {}});
  for (const Step& step : plan) {
    const auto& node = nodes[step.owner];
    const Value &a = values[step.a], &b = values[step.b];
    rref::RRef<at::Tensor> out;
    if (a.here.defined() && b.here.defined())
      out = node.remote<&GraphNode::apply>(pass, step.op, step.hook, a.here, b.here);
    else if (a.here.defined())
      out = node.remote<&GraphNode::apply>(pass, step.op, step.hook, a.here, b.there);
    else if (b.here.defined())
      out = node.remote<&GraphNode::apply>(pass, step.op, step.hook, a.there, b.here);
    else
      out = node.remote<&GraphNode::apply>(pass, step.op, step.hook, a.there, b.there);
    const bool needed_here = step.fetch && used[values.size()];
    values.push_back({needed_here ? out.to_here(pass).get() : at::Tensor(), out});
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (used[i]) continue;
    const at::Tensor value = values[i].here.defined() ? values[i].here : values[i].there.to_here(pass).get();
    loss = loss + value.square().sum();
  }
  pass.backward(loss, {}, {.defer_weights = defer_weights}).get();

  for (std::size_t i = 0; i < inputs; ++i)
    if (local[i].grad().defined())
      expect_equal(pass.gradient(values[i].here), local[i].grad(), "input " + std::to_string(i));
  for (std::size_t i = 0; i < workers; ++i) {
    const at::Tensor gradient = nodes[i].call<&GraphNode::gradient>(pass.id()).get();
    ASSERT_EQ(gradient.defined(), local_weights[i].grad().defined()) << "weight " << i;
    if (gradient.defined()) expect_equal(gradient, local_weights[i].grad(), "weight " + std::to_string(i));
  }
}

class RandomGraphs : public ::testing::TestWithParam<bool> {};  // defer_weights

TEST_P(RandomGraphs, HaveTheGradientsOfOneProcess) {
  Cluster cluster(4);
  for (std::size_t i = 0; i < cluster.size(); ++i) cluster[i].allow_create<GraphNode>();
  if (const char* seed = std::getenv("WEFT_AUTOGRAD_SEED"))
    return run_seed(cluster, std::stoul(seed), GetParam());
  for (unsigned seed = 1; seed <= 200 && !::testing::Test::HasFailure(); ++seed)
    run_seed(cluster, seed, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomGraphs, ::testing::Bool(),
                         [](const auto& deferred) { return deferred.param ? "deferred" : "whole"; });

}  // namespace
}  // namespace weft::dist_autograd::test::random_graph_test
