// Shared by the tests of passes with dense and with sparse (COO) tensors: workers that serve functions of
// tensors, some of which call further workers, and a fixture that calls them or creates remote results.
#pragma once

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/rpc/tensor/operators.h>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::dist_autograd::test {

enum class Kind { dense, sparse };
enum class How { call, remote };

inline std::string origin(const at::Tensor& tensor) {
  return tensor.defined() && tensor.grad_fn() != nullptr ? tensor.grad_fn()->name() : "";
}

inline at::Tensor total(const at::Tensor& tensor) {
  return tensor.is_sparse() ? at::_sparse_sum(tensor) : tensor.sum();
}

// The nodes behind the tensors of a request, as its handler found them.
struct Arrival {
  std::vector<std::string> origins;  // "": of a tensor that needs no grad
  std::size_t nodes = 0;             // the number of different nodes
  std::size_t inputs = 0;            // the number of tensors of all nodes
};

// Every agent serves these functions.
struct Functions {
  explicit Functions(rpc::Agent& a) : agent(&a) {}

  at::Tensor add(at::Tensor x, at::Tensor y) {
    note({x, y});
    return x + y;
  }
  at::Tensor multiply(at::Tensor x, at::Tensor y) { return x * y; }
  at::Tensor square_add(at::Tensor x, at::Tensor y) { return x * x + y; }
  at::Tensor mixed(at::Tensor x, at::Tensor y) { return y.requires_grad() ? x - y : x * y; }
  at::Tensor stack(std::vector<at::Tensor> tensors) {
    note(tensors);
    return at::stack(tensors);
  }
  std::int64_t number(std::int64_t n) { return n + 1; }
  at::Tensor fail_backward(at::Tensor x) { return FailingBackward::apply(x); }

  // The last worker of the route computes the sum.
  rpc::Task<at::Tensor> along(rpc::CallContext& call, std::vector<std::string> route, at::Tensor x,
                              at::Tensor y) {
    note({x, y});
    if (route.empty()) co_return x + y;
    const rpc::Peer next = agent->peer(route.front()).with(call);
    route.erase(route.begin());
    co_return co_await next.call<&Functions::along>(route, x, y);
  }
  rpc::Task<at::Tensor> nested(rpc::CallContext& call, std::string next, at::Tensor x, at::Tensor y) {
    const at::Tensor product = x * y, sum = x + y;
    const at::Tensor there = co_await agent->peer(next).with(call).call<&Functions::add>(product, sum);
    const at::Tensor result = x * y * product * sum * there;
    co_return result;
  }
  rpc::Task<at::Tensor> nested_failure(rpc::CallContext& call, std::string next, at::Tensor x) {
    const at::Tensor here = x * 2;
    const at::Tensor there = co_await agent->peer(next).with(call).call<&Functions::fail_backward>(here);
    co_return here + there;
  }
  // Releases its pass when the gradient of its result arrives.
  at::Tensor releasing(rpc::CallContext& call, at::Tensor x) {
    const auto context = AutogradLayer::of(*call.host());
    const PassId pass = Pass::of(call).id();
    at::Tensor result = x * 2;
    result.register_hook([context, pass](at::Tensor gradient) {
      context->release(pass, nullptr);
      return gradient;
    });
    return result;
  }

  // A leaf on this worker, behind an RRef to it.
  at::Tensor make(at::Tensor value) { return value.detach().clone().requires_grad_(); }
  at::Tensor make_later(at::Tensor value) {
    gate.wait();
    return make(std::move(value));
  }
  rpc::Task<at::Tensor> gradient(rpc::CallContext& call, PassId pass, rref::RRef<at::Tensor> leaf) {
    const auto here = co_await leaf.local();
    co_return AutogradLayer::of(*call.host())->find(pass)->gradient(*here);
  }
  at::Tensor give() { return own; }
  // Handles for the pass and for a tensor, for a backward that starts here.
  void keep(rpc::CallContext& call, rref::RRef<at::Tensor> root) {
    kept_pass.emplace(Pass::of(call));
    kept_root = std::move(root);
  }
  at::Tensor keep_and_fail(at::Tensor x) {
    own = std::move(x);
    throw std::runtime_error("forward failed on purpose");
  }
  at::Tensor square_later(at::Tensor x) {
    gate.wait();
    return x * x;
  }

  using Service = rpc::Service<
      "test.functions", rpc::Method<"add", &Functions::add>, rpc::Method<"multiply", &Functions::multiply>,
      rpc::Method<"square_add", &Functions::square_add>, rpc::Method<"mixed", &Functions::mixed>,
      rpc::Method<"stack", &Functions::stack>, rpc::Method<"number", &Functions::number>,
      rpc::Method<"fail_backward", &Functions::fail_backward>, rpc::Method<"along", &Functions::along>,
      rpc::Method<"nested", &Functions::nested>, rpc::Method<"nested_failure", &Functions::nested_failure>,
      rpc::Method<"releasing", &Functions::releasing>, rpc::Method<"make", &Functions::make>,
      rpc::Method<"make_later", &Functions::make_later>, rpc::Method<"gradient", &Functions::gradient>,
      rpc::Method<"give", &Functions::give>, rpc::Method<"keep", &Functions::keep>,
      rpc::Method<"keep_and_fail", &Functions::keep_and_fail>,
      rpc::Method<"square_later", &Functions::square_later>>;

  Arrival last_arrival() {
    std::lock_guard lock(mutex);
    return arrivals.back();
  }

  rpc::Agent* agent;
  at::Tensor own;
  std::optional<Pass> kept_pass;
  rref::RRef<at::Tensor> kept_root;
  weft::test::Event gate;
  std::mutex mutex;  // guards arrivals
  std::vector<Arrival> arrivals;

 private:
  void note(const std::vector<at::Tensor>& tensors) {
    Arrival arrival;
    std::set<const torch::autograd::Node*> nodes;
    for (const at::Tensor& tensor : tensors) {
      arrival.origins.push_back(origin(tensor));
      if (tensor.grad_fn() != nullptr && nodes.insert(&*tensor.grad_fn()).second)
        arrival.inputs += tensor.grad_fn()->num_inputs();
    }
    arrival.nodes = nodes.size();
    std::lock_guard lock(mutex);
    arrivals.push_back(std::move(arrival));
  }
};

// Four workers. worker0 starts each pass.
class Workers {
 public:
  explicit Workers(Kind kind) : kind_(kind) {
    torch::manual_seed(11);
    for (std::size_t i = 0; i < cluster.size(); ++i) {
      functions.push_back(std::make_shared<Functions>(cluster[i]));
      cluster[i].serve(functions.back());
    }
  }

  at::Tensor draw(at::ScalarType type = at::kDouble) const {
    if (kind_ == Kind::dense) return torch::rand({3, 3}, at::TensorOptions().dtype(type));
    const at::Tensor indices = torch::tensor({{0, 1, 1, 1}, {2, 0, 2, 2}});  // one of them twice
    return at::sparse_coo_tensor(indices, torch::rand({4}, at::TensorOptions().dtype(type)), {3, 3});
  }
  at::Tensor leaf(at::ScalarType type = at::kDouble) const { return draw(type).requires_grad_(); }

  PassState& state(std::size_t worker, const Pass& pass) {
    return *AutogradLayer::of(*cluster[worker].core())->find(pass.id());
  }
  // Returns the number of messages with tensors that require grad that a worker has sent in a pass. A test
  // may call this once per pass, because each call uses a message number.
  std::size_t sent(std::size_t worker, const Pass& pass) {
    return state(worker, pass).next_message().number - 1;
  }
  void expect_nothing_left() {
    weft::test::eventually("no pass is left", [&] { return cluster.live_passes() == 0; });
  }

  Cluster cluster{4};
  std::vector<std::shared_ptr<Functions>> functions;

 private:
  const Kind kind_;
};

// The gradients that one process computes for `leaves`.
using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;
inline std::vector<at::Tensor> gradients_here(std::vector<at::Tensor> leaves, const Forward& forward) {
  for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().requires_grad_(leaf.requires_grad());
  total(forward(leaves)).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

inline at::Tensor dense(const at::Tensor& tensor) { return tensor.is_sparse() ? tensor.to_dense() : tensor; }

inline void expect_gradient(const at::Tensor& found, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(found.defined(), want.defined()) << what;
  if (!want.defined()) return;
  EXPECT_EQ(found.is_sparse(), want.is_sparse()) << what;
  EXPECT_EQ(found.scalar_type(), want.scalar_type()) << what;
  expect_equal(dense(found), dense(want), what);
}

inline void expect_gradients(const Pass& pass, const std::vector<at::Tensor>& leaves,
                             const std::vector<at::Tensor>& want) {
  std::size_t with = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    expect_gradient(pass.gradient(leaves[i]), want[i], "leaf " + std::to_string(i));
    with += want[i].defined() ? 1 : 0;
  }
  EXPECT_EQ(pass.gradients().size(), with) << "and no others";
}

// Runs `Method` by a call, or by remote and to_here.
template <auto Method, class... Given>
at::Tensor ask(How how, const rpc::Peer& peer, const Pass& pass, const Given&... given) {
  if (how == How::call) return weft::test::got(peer.call<Method>(pass, given...));
  return weft::test::got(rref::remote<Method>(peer, pass, given...).to_here(pass));
}

class KindsTest : public ::testing::TestWithParam<std::tuple<Kind, How>>, protected Workers {
 protected:
  KindsTest() : Workers(std::get<0>(GetParam())) {}

  template <auto Method, class... Given>
  at::Tensor run(std::size_t worker, const Pass& pass, const Given&... given) {
    return ask<Method>(std::get<1>(GetParam()), cluster.peer(0, worker), pass, given...);
  }
};

inline std::string kind_name(Kind kind) { return kind == Kind::dense ? "Dense" : "Sparse"; }
inline std::string kinds_name(const ::testing::TestParamInfo<std::tuple<Kind, How>>& info) {
  return kind_name(std::get<0>(info.param)) + (std::get<1>(info.param) == How::call ? "ByCall" : "ByRemote");
}
inline auto all_kinds() {
  return ::testing::Combine(::testing::Values(Kind::dense, Kind::sparse),
                            ::testing::Values(How::call, How::remote));
}

}  // namespace weft::dist_autograd::test
