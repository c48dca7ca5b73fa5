// LibTorch's own modules behind RRefs.
#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_autograd/module/served_module.h>
#include <weft/rpc/testing/wait.h>

#include "tests/dist_autograd/pass_support.h"

namespace weft::dist_autograd::served_module_test {
namespace {

using weft::test::got;

using Linear = ServedModule<"nn.linear", torch::nn::LinearImpl, std::int64_t, std::int64_t>;
using Norm = ServedModule<"nn.layer_norm", torch::nn::LayerNormImpl, std::vector<std::int64_t>>;
using Relu = ServedModule<"nn.relu", torch::nn::ReLUImpl>;

TEST(ServedModule, IsCreatedCalledAndTrainedRemotely) {
  test::Cluster workers{2};
  workers[1].allow_create<Linear>();
  workers[1].allow_create<Norm>();
  workers[1].allow_create<Relu>();
  const auto linear = rref::create<Linear>(workers.peer(0, 1), 4, 3);
  const auto norm = rref::create<Norm>(workers.peer(0, 1), std::vector<std::int64_t>{3});
  const auto relu = rref::create<Relu>(workers.peer(0, 1));

  torch::nn::Linear own(4, 3);
  got(RemoteModule{linear}.load_state_dict({{"weight", own->weight}, {"bias", own->bias}}));
  const at::Tensor x = at::arange(8, at::kFloat).reshape({2, 4}).sin();
  Pass pass{workers[0]};
  auto y = got(linear.call<&Linear::forward>(pass, x));
  y = got(norm.call<&Norm::forward>(pass, y));
  y = got(relu.call<&Relu::forward>(pass, y));
  const at::Tensor expected = torch::relu(torch::layer_norm(own(x), {3}));
  EXPECT_TRUE(torch::equal(y, expected));
  got(pass.backward(y.square().sum()));
  expected.square().sum().backward();
  for (const auto& [name, gradient] : got(RemoteModule{linear}.gradients(pass)))
    EXPECT_TRUE(torch::allclose(gradient, name == "weight" ? own->weight.grad() : own->bias.grad())) << name;
}

TEST(ServedModule, IsCreatedOnlyWhereItsOwnerAllowsIt) {
  test::Cluster workers{2};
  workers[1].allow_create<Relu>();
  EXPECT_THROW(got(rref::create<Linear>(workers.peer(0, 1), 4, 3).ready()), rpc::Error);
  EXPECT_NO_THROW(got(rref::create<Relu>(workers.peer(0, 1)).ready()));
}

}  // namespace
}  // namespace weft::dist_autograd::served_module_test
