// activation_checkpoint against the same forward without it, under LibTorch's engine and in a pass.
#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/dist_autograd/module/remote_module.h>

#include <ATen/autocast_mode.h>

#include <thread>

#include "tests/dist_autograd/pass_support.h"
#include "tests/support/errors.h"

namespace weft::dist_autograd::test::activation_checkpoint_test {
namespace {

using rpc::ErrorKind;
using Tensors = std::vector<at::Tensor>;

struct Block : torch::nn::Module {
  Block() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 6));
    to(at::kDouble);
  }
  at::Tensor forward(at::Tensor x) {
    ++runs;
    const at::Tensor hidden = torch::dropout(first(x).tanh(), drop, is_training());
    hidden_ = hidden.storage().getWeakStorageImpl();
    return second(hidden);
  }
  at::Tensor checkpointed(at::Tensor x) { return activation_checkpoint(*this, x); }

  using Service =
      rpc::Service<"test.block", rpc::Constructor<>, rpc::Method<"checkpointed", &Block::checkpointed>,
                   rpc::Method<"forward", &Block::forward>>;

  torch::nn::Linear first{nullptr}, second{nullptr};
  double drop = 0;
  int runs = 0;
  c10::weak_intrusive_ptr<c10::StorageImpl> hidden_{c10::intrusive_ptr<c10::StorageImpl>()};
};

struct Gradients {
  at::Tensor x;
  Tensors parameters;
};
void expect_same(const Gradients& got, const Gradients& want) {
  EXPECT_TRUE(at::equal(got.x, want.x));
  ASSERT_EQ(got.parameters.size(), want.parameters.size());
  for (std::size_t i = 0; i < got.parameters.size(); ++i)
    EXPECT_TRUE(at::equal(got.parameters[i], want.parameters[i])) << i;
}

class ActivationCheckpoint : public ::testing::Test {
 protected:
  ActivationCheckpoint() {
    torch::manual_seed(5);
    block = std::make_shared<Block>();
    x0 = matrix();
  }
  template <class Forward>
  Gradients gradients(Forward forward) {
    block->zero_grad();
    at::Tensor x = x0.clone().requires_grad_();
    forward(x).square().sum().backward();
    Gradients all{x.grad(), {}};
    for (const at::Tensor& parameter : block->parameters()) all.parameters.push_back(parameter.grad());
    return all;
  }

  std::shared_ptr<Block> block;
  at::Tensor x0;
};

TEST_F(ActivationCheckpoint, GivesTheSameGradientsAndRunsTheForwardTwice) {
  const Gradients want = gradients([&](const at::Tensor& x) { return block->forward(x); });
  block->runs = 0;
  const Gradients got = gradients([&](const at::Tensor& x) { return activation_checkpoint(*block, x); });
  expect_same(got, want);
  EXPECT_EQ(block->runs, 2);
}

// Every use of a parameter adds to its gradient, also a use outside the checkpoint.
TEST_F(ActivationCheckpoint, MayShareParametersWithTheRestOfTheGraph) {
  const Gradients want =
      gradients([&](const at::Tensor& x) { return block->forward(block->forward(x)) + block->forward(x); });
  const Gradients got = gradients([&](const at::Tensor& x) {
    return activation_checkpoint(*block, activation_checkpoint(*block, x)) + block->forward(x);
  });
  expect_equal(got.x, want.x, "x");
  for (std::size_t i = 0; i < want.parameters.size(); ++i)
    expect_equal(got.parameters[i], want.parameters[i], "a parameter");
}

TEST_F(ActivationCheckpoint, KeepsNoActivations) {
  const at::Tensor y = activation_checkpoint(*block, x0.clone().requires_grad_());
  EXPECT_TRUE(block->hidden_.expired());
  const at::Tensor kept = block->forward(x0.clone().requires_grad_());
  EXPECT_FALSE(block->hidden_.expired()) << "without a checkpoint they are kept";
}

TEST_F(ActivationCheckpoint, DrawsTheSameRandomNumbersAgain) {
  block->drop = 0.5;
  torch::manual_seed(11);
  const Gradients want = gradients([&](const at::Tensor& x) { return block->forward(x); });
  const at::Tensor after = torch::rand({4});
  torch::manual_seed(11);
  const Gradients got = gradients([&](const at::Tensor& x) {
    const at::Tensor y = activation_checkpoint(*block, x);
    torch::rand({100});  // other operators draw between the forward and the backward
    return y;
  });
  expect_same(got, want);
  torch::manual_seed(11);
  gradients([&](const at::Tensor& x) { return activation_checkpoint(*block, x); });
  EXPECT_TRUE(at::equal(torch::rand({4}), after)) << "the second run leaves the generator as it was";
}

TEST_F(ActivationCheckpoint, DrawsTheSameNumbersFromGivenGeneratorsAgain) {
  at::Generator own = at::detail::createCPUGenerator(3);
  const auto forward = [&](const Tensors& in) { return Tensors{in[0] * at::rand({4}, own)}; };
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor y = activation_checkpoint(forward, {x}, {}, {own})[0];
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));
}

// Other threads draw equally often in both runs, but not at the same places.
TEST_F(ActivationCheckpoint, FailsIfOtherThreadsHaveDrawnSomeOfTheNumbers) {
  for (const bool draws_itself : {true, false}) {
    int runs = 0;
    const auto forward = [&](const Tensors& in) {
      const auto mask = [&] { return draws_itself ? at::rand({4}) : at::ones({4}); };
      const auto other = [] { std::thread([] { at::rand({8}); }).join(); };
      if (runs++ == 0) other();
      const at::Tensor y = in[0] * mask();
      if (runs > 1) other();
      return Tensors{y};
    };
    const at::Tensor x = at::ones({4}).requires_grad_();
    const at::Tensor y = activation_checkpoint(forward, {x}, {})[0];
    const auto error = weft::test::error_of([&] { y.sum().backward(); });
    ASSERT_EQ(error.has_value(), draws_itself) << (error ? error->what() : "no error");
    if (error) {
      EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
    } else {
      EXPECT_TRUE(at::equal(x.grad(), y.detach()));
    }
  }
}

TEST_F(ActivationCheckpoint, RunsAgainUnderTheSameAutocast) {
  std::vector<at::ScalarType> seen;
  const auto forward = [&](const Tensors& in) {
    const at::Tensor y = in[0].mm(in[0]);
    seen.push_back(y.scalar_type());
    return Tensors{y};
  };
  at::Tensor x = at::ones({2, 2}).requires_grad_();
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = activation_checkpoint(forward, {x}, {})[0];
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
}

TEST_F(ActivationCheckpoint, SomeResultsMayBeUnusedOrNotDifferentiable) {
  at::Tensor x = x0.clone().requires_grad_(), unused_in = x0.clone().requires_grad_();
  const auto forward = [](const Tensors& in) {
    return Tensors{in[0].argmax(), in[0].sin(), in[1].cos(), in[0] * in[2]};
  };
  const Tensors out = activation_checkpoint(forward, {x, unused_in, at::ones_like(x)}, {});
  EXPECT_FALSE(out[0].requires_grad());
  (out[1] + out[3]).sum().backward();
  at::Tensor xo = x0.clone().requires_grad_();
  (xo.sin() + xo).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), xo.grad()));
  EXPECT_FALSE(unused_in.grad().defined());
}

TEST_F(ActivationCheckpoint, MayRunBackwardAgainIfTheGraphIsKept) {
  at::Tensor x = x0.clone().requires_grad_();
  const at::Tensor loss = activation_checkpoint(*block, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  loss.backward();
  expect_equal(x.grad(), 2 * once, "twice");
  EXPECT_EQ(kind_of([&] { loss.backward(); }, "retain_graph"), ErrorKind::failed_precondition);
}

TEST_F(ActivationCheckpoint, WithoutGradIsAPlainForward) {
  at::NoGradGuard no_grad;
  const at::Tensor y = activation_checkpoint(*block, x0.clone().requires_grad_());
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(block->runs, 1);
}

TEST_F(ActivationCheckpoint, AMissingLeafIsNamed) {
  at::Tensor x = x0.clone().requires_grad_(), hidden = at::ones({6, 3}, at::kDouble).requires_grad_();
  const at::Tensor y =
      activation_checkpoint([&](const Tensors& in) { return Tensors{in[0].mm(hidden)}; }, {x}, {})[0];
  EXPECT_EQ(kind_of([&] { y.sum().backward(); }, "a leaf of sizes [6, 3]"), ErrorKind::failed_precondition);
}

TEST_F(ActivationCheckpoint, ARecordedBackwardIsRefused) {
  at::Tensor x = x0.clone().requires_grad_();
  const at::Tensor y = activation_checkpoint(*block, x).sum();
  EXPECT_EQ(
      kind_of([&] { torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }, "create_graph"),
      ErrorKind::unsupported);
}

TEST_F(ActivationCheckpoint, OnAnotherWorkerPutsGradientsIntoThePass) {
  Cluster cluster(2);
  cluster[1].allow_create<Block>();
  const auto remote = rref::create<Block>(cluster.peer(0, 1));
  const auto run = [&](auto call) {
    at::Tensor x = x0.clone().requires_grad_();
    Pass pass{cluster[0]};
    pass.backward(call(pass, x).square().sum()).get();
    Tensors all{pass.gradient(x)};
    for (const auto& [name, gradient] : RemoteModule(remote).gradients(pass).get()) all.push_back(gradient);
    return all;
  };
  const Tensors want =
      run([&](Pass& pass, const at::Tensor& x) { return remote.call<&Block::forward>(pass, x).get(); });
  const Tensors got =
      run([&](Pass& pass, const at::Tensor& x) { return remote.call<&Block::checkpointed>(pass, x).get(); });
  ASSERT_EQ(want.size(), 5U);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
}

}  // namespace
}  // namespace weft::dist_autograd::test::activation_checkpoint_test
