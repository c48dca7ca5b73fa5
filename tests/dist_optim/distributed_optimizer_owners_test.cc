// DistributedOptimizer over modules of two owners equals LibTorch's optimizers in one process. Also tests an
// owner without parameters to step.
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/cluster.h"

namespace weft::dist_optim::distributed_optimizer_owners_test {
namespace {

using weft::test::got;

struct Matrix : torch::nn::Module {
  Matrix(at::Tensor initial, bool trained) { w = register_parameter("w", initial.clone(), trained); }
  at::Tensor forward(at::Tensor x) { return w.mm(x); }
  at::Tensor value() { return w.detach().clone(); }
  using Service =
      rpc::Service<"test.matrix", rpc::Constructor<at::Tensor, bool>,
                   rpc::Method<"forward", &Matrix::forward>, rpc::Method<"value", &Matrix::value>>;
  at::Tensor w;
};

class OwnersTest : public testing::Test {
 protected:
  OwnersTest() {
    at::set_num_threads(1);
    torch::manual_seed(3);
    for (const auto* owner : {"first", "second"}) cluster[owner].allow_create<Matrix>();
  }
  rpc::Agent& trainer() { return cluster["trainer"]; }
  rpc::Peer owner(const std::string& name) { return cluster.peer("trainer", name); }
  static at::Tensor draw() { return torch::rand({3, 3}, at::kDouble); }

  // Compares a step over two matrices with LibTorch's step in one process. The second matrix may be frozen.
  template <class Optimizer, class Options>
  void expect_as_on_one_process(const Options& options, bool second_trained) {
    const at::Tensor v = draw(), w = draw(), x = draw();
    const auto a = rref::create<Matrix>(owner("first"), v, true),
               b = rref::create<Matrix>(owner("second"), w, second_trained);
    DistributedOptimizer optimizer{trainer(), options, synchronous, a, b};
    Matrix c{v, true}, d{w, second_trained};
    std::vector<at::Tensor> parameters{c.w};
    if (second_trained) parameters.push_back(d.w);
    Optimizer oracle(parameters, options);
    for (int i = 0; i < 3; ++i) {
      dist_autograd::Pass pass{trainer()};
      const at::Tensor hidden = got(a.call<&Matrix::forward>(pass, x));
      got(pass.backward(got(b.call<&Matrix::forward>(pass, hidden)).square().sum()));
      got(optimizer.step(pass));
      oracle.zero_grad();
      d.forward(c.forward(x)).square().sum().backward();
      oracle.step();
    }
    EXPECT_TRUE(got(a.call<&Matrix::value>()).allclose(c.w, 1e-12, 1e-12));
    EXPECT_TRUE(got(b.call<&Matrix::value>()).allclose(d.w, 1e-12, 1e-12));
    EXPECT_FALSE(c.w.equal(v));
    EXPECT_EQ(d.w.equal(w), !second_trained);
  }

  weft::test::Cluster cluster{{.layers = layers()}, {"trainer", "first", "second"}};
};

TEST_F(OwnersTest, AStepOverTwoOwnersEqualsOneProcess) {
  using namespace torch::optim;
  expect_as_on_one_process<Adagrad>(AdagradOptions(0.05), true);
  expect_as_on_one_process<Adam>(AdamOptions(1e-2).amsgrad(true), true);
  expect_as_on_one_process<AdamW>(AdamWOptions(0.05).amsgrad(true), true);
  expect_as_on_one_process<SGD>(SGDOptions(1e-3).momentum(1).weight_decay(1).nesterov(true), true);
  expect_as_on_one_process<RMSprop>(RMSpropOptions(0.05), true);
  expect_as_on_one_process<Adadelta>(AdadeltaOptions().weight_decay(0.1), true);
  expect_as_on_one_process<Adamax>(AdamaxOptions(0.05), true);
  expect_as_on_one_process<Rprop>(RpropOptions(0.01), true);
}

TEST_F(OwnersTest, AFrozenModuleDoesNotChange) {
  expect_as_on_one_process<torch::optim::SGD>(torch::optim::SGDOptions(0.05), false);
  expect_as_on_one_process<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.05), false);
}

}  // namespace
}  // namespace weft::dist_optim::distributed_optimizer_owners_test
