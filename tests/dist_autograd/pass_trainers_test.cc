// Several trainers, each with its own pass, share one parameter of another worker.
#include <ATen/core/grad_mode.h>

#include <deque>

#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_trainers_test {
namespace {

using weft::test::got;

// Served by every agent: runs one training iteration for the caller. Its pass lives until the test ends.
struct Trainer {
  explicit Trainer(rpc::Agent& a) : agent(&a) {}
  // Also trains a parameter on this worker, and returns its gradient.
  rpc::Task<at::Tensor> train(rref::RRef<at::Tensor> parameter, at::Tensor data) {
    passes.emplace_back(*agent);
    Pass& pass = passes.back();
    const at::Tensor own = data.detach().clone().requires_grad_();
    const rpc::Peer owner = agent->peer(parameter.owner().name);
    const at::Tensor result = co_await owner.call<&Functions::square_add>(pass, parameter, own);
    at::Tensor loss;
    {
      const at::AutoGradMode with_grad(true);  // this call came without a pass: its handler runs without grad
      loss = total(result * own);
    }
    co_await pass.backward(loss);
    co_return pass.gradient(own);
  }
  using Service = rpc::Service<"test.trainer", rpc::Method<"train", &Trainer::train>>;
  rpc::Agent* agent;
  std::deque<Pass> passes;
};

class PassTrainers : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  PassTrainers() : Workers(GetParam()) {
    for (std::size_t i = 1; i < cluster.size(); ++i) {
      trainers.push_back(std::make_shared<Trainer>(cluster[i]));
      cluster[i].serve(trainers.back());
    }
  }
  std::vector<std::shared_ptr<Trainer>> trainers;
};

TEST_P(PassTrainers, HaveGradientsOfTheirOwnParametersAndOfASharedOne) {
  const at::Tensor parameter = leaf();
  const auto handle = rref::local(cluster[0], parameter);
  std::vector<at::Tensor> data;
  std::vector<rpc::Future<at::Tensor>> trained;
  for (std::size_t i = 1; i < 4; ++i) {
    data.push_back(draw());
    trained.push_back(cluster.peer(0, i).call<&Trainer::train>(handle, data.back()));
  }
  const auto own = got(rpc::when_all(std::move(trained)));
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor here = data[i].detach().clone().requires_grad_();
    const auto want = gradients_here({parameter, here}, [](const auto& leaves) {
      return (leaves[0] * leaves[0] + leaves[1]) * leaves[1];
    });
    expect_gradient(own[i], want[1], "trainer " + std::to_string(i) + ", its own");
    const auto state = AutogradLayer::of(*cluster[0].core())->find(trainers[i]->passes.front().id());
    EXPECT_EQ(state->gradients().size(), 1U);
    expect_gradient(state->gradient(parameter), want[0], "trainer " + std::to_string(i) + ", the shared one");
  }
  EXPECT_FALSE(parameter.grad().defined());
  for (const auto& trainer : trainers) trainer->passes.clear();
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassTrainers, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

}  // namespace
}  // namespace weft::dist_autograd::test::pass_trainers_test
