// Agents of one process that train together, and a tensor function to call on any of them.
#pragma once

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_autograd/failing_backward.h"
#include "tests/support/between_hosts.h"

namespace weft::dist_autograd::test {

// A matrix on its owner, with all functions that use it.
struct Weights {
  explicit Weights(at::Tensor initial) : w(initial.clone().set_requires_grad(true)) {}
  at::Tensor w;

  at::Tensor multiply(at::Tensor x) { return x.mm(w).tanh(); }
  // The gradient of w on this agent in a pass; undefined if the pass has none.
  at::Tensor gradient(rpc::CallContext& call, PassId pass) {
    return AutogradLayer::of(*call.host())->find(pass)->gradient(w);
  }
  at::Tensor total(at::Tensor x) { return x.mm(w).tanh().sum(); }
  std::vector<at::Tensor> two(at::Tensor x) { return {x.mm(w), (x * 2).mm(w)}; }
  at::Tensor no_grad_seen(at::Tensor x) {
    return at::full({1}, at::GradMode::is_enabled() ? 1.0 : 0.0) + 0 * x.sum().detach();
  }
  at::Tensor fail(at::Tensor) { throw std::runtime_error("forward failed"); }
  at::Tensor fail_backward(at::Tensor x);
  rpc::Task<at::Tensor> through(rpc::CallContext& call, rref::RRef<Weights> next, at::Tensor x);
  rpc::Task<at::Tensor> bounce(rpc::CallContext& call, rref::RRef<Weights> self, rref::RRef<Weights> other,
                               at::Tensor x, std::int64_t times);

  using Service =
      rpc::Service<"test.weights", rpc::Constructor<at::Tensor>, rpc::Method<"multiply", &Weights::multiply>,
                   rpc::Method<"gradient", &Weights::gradient>, rpc::Method<"total", &Weights::total>,
                   rpc::Method<"two", &Weights::two>, rpc::Method<"no_grad_seen", &Weights::no_grad_seen>,
                   rpc::Method<"fail", &Weights::fail>, rpc::Method<"fail_backward", &Weights::fail_backward>,
                   rpc::Method<"through", &Weights::through>, rpc::Method<"bounce", &Weights::bounce>>;
};

inline at::Tensor Weights::fail_backward(at::Tensor x) { return FailingBackward::apply(x.mm(w)); }

inline rpc::Task<at::Tensor> Weights::through(rpc::CallContext& call, rref::RRef<Weights> next,
                                              at::Tensor x) {
  at::Tensor here = x.mm(w).sin();
  at::Tensor there = co_await next.with(call).call<&Weights::multiply>(here);
  co_return there + here;
}

// A chain of calls A -> B -> A -> B …: `self` is the object that runs, `other` the object that it calls.
inline rpc::Task<at::Tensor> Weights::bounce(rpc::CallContext& call, rref::RRef<Weights> self,
                                             rref::RRef<Weights> other, at::Tensor x, std::int64_t times) {
  at::Tensor here = x.mm(w).tanh();
  if (times == 0) co_return here;
  at::Tensor there = co_await other.with(call).call<&Weights::bounce>(other, self, here, times - 1);
  co_return there * 0.5 + here;
}

class Cluster {
 public:
  explicit Cluster(std::size_t agents, std::vector<tensor::DeviceOptions> devices = {}) {
    devices.resize(agents);
    for (std::size_t i = 0; i < agents; ++i) {
      rpc::AgentOptions options;
      options.name = "worker" + std::to_string(i);
      weft::test::place(options, network_);
      options.handler_threads = 2;
      options.log = [](const rpc::LogRecord&) {};
      agents_.push_back(std::make_unique<rpc::Agent>(std::move(options), layers(devices[i])));
      agents_.back()->allow_create<Weights>();
    }
    weft::test::acquaint(agents_);
  }
  rpc::Agent& operator[](std::size_t i) { return *agents_[i]; }
  rpc::Peer peer(std::size_t from, std::size_t to) { return agents_[from]->peer(agents_[to]->name()); }
  void kill(std::size_t i) { agents_[i]->shut_down(); }
  std::size_t size() const { return agents_.size(); }
  std::size_t live_passes() const {
    std::size_t all = 0;
    for (const auto& agent : agents_) all += AutogradLayer::of(*agent->core())->live_passes();
    return all;
  }

 private:
  std::shared_ptr<rpc::InProcess> network_ = std::make_shared<rpc::InProcess>();
  std::vector<std::unique_ptr<rpc::Agent>> agents_;
};

inline at::Tensor matrix(std::int64_t n = 6, at::ScalarType type = at::kDouble) {
  return torch::randn({n, n}, at::TensorOptions().dtype(type)) * 0.5;
}

inline void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_TRUE(got.defined()) << what;
  const double bound = want.scalar_type() == at::kDouble ? 1e-12 : 1e-6;
  const double scale = std::max(want.abs().max().item<double>(), 1e-30);
  EXPECT_LE((got - want).abs().max().item<double>(), bound * scale) << what;
}

using Object = rref::RRef<Weights>;

inline at::Tensor run_multiply(const Object& object, const Pass& pass, const at::Tensor& x) {
  return object.call<&Weights::multiply>(pass, x).get();
}
inline at::Tensor gradient_of(const Object& object, const Pass& pass) {
  return object.call<&Weights::gradient>(pass.id()).get();
}

// A pass of worker0 over its tensor x and over the matrices a and b of worker1 and worker2. xo, ao and bo are
// for the same computation in one process.
struct ThreeWorkers {
  explicit ThreeWorkers(std::uint64_t seed, at::ScalarType of = at::kDouble)
      : type((torch::manual_seed(seed), of)) {}

  // Compares the gradients of the pass with those of one process. The computation may omit b.
  void expect_gradients() const {
    expect_equal(pass.gradient(x), xo.grad(), "x");
    expect_equal(gradient_of(a, pass), ao.grad(), "a");
    if (bo.grad().defined()) expect_equal(gradient_of(b, pass), bo.grad(), "b");
  }

  const at::ScalarType type;
  Cluster cluster{3};
  const at::Tensor a0 = matrix(6, type), b0 = matrix(6, type), x0 = matrix(6, type);
  Object a = rref::create<Weights>(cluster.peer(0, 1), a0), b = rref::create<Weights>(cluster.peer(0, 2), b0);
  at::Tensor x = x0.clone().requires_grad_(), xo = x0.clone().requires_grad_();
  at::Tensor ao = a0.clone().requires_grad_(), bo = b0.clone().requires_grad_();
  Pass pass{cluster[0]};
};

template <class F>
inline rpc::ErrorKind kind_of(F&& f, std::string contains = "") {
  try {
    f();
  } catch (const rpc::Error& error) {
    EXPECT_NE(std::string(error.what()).find(contains), std::string::npos) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return rpc::ErrorKind::internal;
}

}  // namespace weft::dist_autograd::test
