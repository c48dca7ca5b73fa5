// DistributedOptimizer over agents of one process: several trainers over one object in each mode.
#include "tests/dist_optim/step_support.h"

namespace weft::dist_optim::distributed_optimizer_test {
namespace {

using step_support::expect_equal;

struct ConvNet : torch::nn::Module {
  ConvNet() {
    torch::manual_seed(11);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3)));
    conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 3)));
    to(at::kDouble);
  }
  torch::nn::Conv2d conv{nullptr}, conv2{nullptr};
  at::Tensor forward(at::Tensor images) { return conv2(conv(images).relu()).tanh(); }
  std::vector<at::Tensor> values() { return step_support::values_of_module(*this); }
  using Service = rpc::Service<"test.convnet", rpc::Method<"forward", &ConvNet::forward>,
                               rpc::Method<"values", &ConvNet::values>>;
};

class Workers : public step_support::Agents {
 public:
  explicit Workers(std::size_t count) : Agents(count) { (*this)[0].allow_create<ConvNet>(); }
  // Alive when this returns: its constructor seeds the process's one random generator, as the tests do.
  rref::RRef<ConvNet> shared(std::size_t from) {
    auto net = rref::create<ConvNet>(peer(from, 0), rref::Named{"net"});
    net.ready().get();
    return net;
  }
};

at::Tensor images(int seed) {
  torch::manual_seed(seed);
  return torch::randn({2, 1, 8, 8}, at::kDouble);
}

// The order of two trainers A and B: A forward; B forward, backward, step; A backward. In PyTorch A's
// backward fails with "modified by an inplace operation".
TEST(DistributedOptimizer, InterleavedTrainersStale) {
  Workers workers(3);
  const auto a_net = workers.shared(1), b_net = workers.shared(2);
  DistributedOptimizer a{workers[1], torch::optim::AdamOptions(1e-2), bounded_staleness(1), a_net};
  DistributedOptimizer b{workers[2], torch::optim::AdamOptions(1e-2), bounded_staleness(1), b_net};
  a.attached().get();
  b.attached().get();
  ConvNet at_start;  // the version that A reads
  dist_autograd::Pass a_pass{workers[1]}, b_pass{workers[2]};
  at::Tensor a_input = images(1).requires_grad_();
  const at::Tensor a_out = a_net.call<&ConvNet::forward>(a_pass, a_input).get();
  b_pass.backward(b_net.call<&ConvNet::forward>(b_pass, images(2)).get().square().sum()).get();
  b.step(b_pass).get();
  a_pass.backward(a_out.square().sum()).get();

  at::Tensor oracle_input = images(1).requires_grad_();
  at_start.forward(oracle_input).square().sum().backward();
  EXPECT_LE((a_pass.gradient(a_input) - oracle_input.grad()).abs().max().item<double>(), 1e-12);
  a.step(a_pass).get();

  // Both steps were applied, each with the gradient of the version that it read.
  ConvNet twice;
  torch::optim::Adam adam(twice.parameters(), torch::optim::AdamOptions(1e-2));
  twice.forward(images(2)).square().sum().backward();
  adam.step();
  ConvNet first;
  first.forward(images(1)).square().sum().backward();
  for (std::size_t i = 0; i < twice.parameters().size(); ++i)
    twice.parameters()[i].mutable_grad() = first.parameters()[i].grad().clone();
  adam.step();
  expect_equal(a_net.call<&ConvNet::values>().get(), twice.values());
}

TEST(DistributedOptimizer, InterleavedTrainersFree) {
  Workers workers(3);
  const auto a_net = workers.shared(1), b_net = workers.shared(2);
  DistributedOptimizer a{workers[1], torch::optim::AdamOptions(1e-2), dist_optim::hogwild, a_net};
  DistributedOptimizer b{workers[2], torch::optim::AdamOptions(1e-2), dist_optim::hogwild, b_net};
  dist_autograd::Pass a_pass{workers[1]}, b_pass{workers[2]};
  const at::Tensor a_out = a_net.call<&ConvNet::forward>(a_pass, images(1)).get();
  b_pass.backward(b_net.call<&ConvNet::forward>(b_pass, images(2)).get().square().sum()).get();
  b.step(b_pass).get();
  a_pass.backward(a_out.square().sum()).get();  // no "modified by an inplace operation"
  a.step(a_pass).get();
  // B stepped after A read and before A stepped.
  const auto stats = a.stats().get();
  ASSERT_EQ(stats.size(), 1U);
  EXPECT_EQ(stats[0].version, 2U);
  EXPECT_EQ(stats[0].staleness, (std::map<std::uint64_t, std::uint64_t>{{0, 1}, {1, 1}}));
}

TEST(DistributedOptimizer, InterleavedTrainersSynchronous) {
  Workers workers(3);
  const auto a_net = workers.shared(1), b_net = workers.shared(2);
  DistributedOptimizer a{workers[1], torch::optim::SGDOptions(0.1), synchronous(2), a_net};
  DistributedOptimizer b{workers[2], torch::optim::SGDOptions(0.1), synchronous(2), b_net};
  dist_autograd::Pass a_pass{workers[1]}, b_pass{workers[2]};
  const at::Tensor a_out = a_net.call<&ConvNet::forward>(a_pass, images(1)).get();
  b_pass.backward(b_net.call<&ConvNet::forward>(b_pass, images(2)).get().square().sum()).get();
  auto b_step = b.step(b_pass);  // waits for A
  a_pass.backward(a_out.square().sum()).get();
  a.step(a_pass).get();
  b_step.get();

  ConvNet oracle;
  torch::optim::SGD sgd(oracle.parameters(), torch::optim::SGDOptions(0.1));
  oracle.forward(images(1)).square().sum().backward();
  oracle.forward(images(2)).square().sum().backward();
  sgd.step();
  expect_equal(a_net.call<&ConvNet::values>().get(), oracle.values());
}

TEST(DistributedOptimizer, ARefusedHandleDoesNotAffectTheOtherOfItsAgent) {
  Workers workers(2);
  const auto net = workers.shared(1);
  DistributedOptimizer good{workers[1], torch::optim::SGDOptions(0.1), synchronous, net};
  good.attached().get();
  dist_autograd::Pass pass{workers[1]};
  pass.backward(net.call<&ConvNet::forward>(pass, images(1)).get().square().sum()).get();
  {
    DistributedOptimizer refused{workers[1], torch::optim::SGDOptions(0.2), synchronous, net};
    EXPECT_THROW(refused.attached().get(), rpc::Error);
  }
  net.call<&ConvNet::values>().get();  // after all messages of its destructor
  EXPECT_NO_THROW(good.step(pass).get());
}

}  // namespace
}  // namespace weft::dist_optim::distributed_optimizer_test
