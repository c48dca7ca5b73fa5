// A module whose parameters an optimizer steps. RemoteModule reads and loads it.
#include <weft/dist_autograd/module/remote_module.h>

#include "tests/dist_optim/refusal.h"
#include "tests/dist_optim/step_support.h"

namespace weft::dist_optim::module_guard_test {
namespace {

using dist_autograd::Pass;
using dist_autograd::RemoteModule;
using dist_autograd::StateDict;

struct Model : torch::nn::Module {
  Model() {
    w = register_parameter("w", torch::full({3}, 2.0, at::kDouble));
    b = register_buffer("b", torch::zeros({1}, at::kDouble));
  }
  at::Tensor forward(at::Tensor x) { return (x * w * w).sum(); }
  at::Tensor w, b;
  using Service = rpc::Service<"module_guard.model", rpc::Method<"forward", &Model::forward>>;
};
// An RRef to this base class calls the forward of Model.
struct Derived : Model {
  std::int64_t version() { return 2; }
  using Service = rpc::Service<"module_guard.derived", rpc::Method<"version", &Derived::version>>;
};

class ModuleGuard : public testing::Test {
 protected:
  ModuleGuard() {
    worker(0).allow_create<Model>();
    worker(0).allow_create<Derived>();
  }
  rpc::Agent& worker(std::size_t i) { return agents[i]; }
  template <class T>
  rref::RRef<T> shared(std::size_t from) {
    auto model = rref::create<T>(agents.peer(from, 0), rref::Named{"model"});
    model.ready().get();
    return model;
  }
  static at::Tensor w_of(const RemoteModule& module) { return module.named_parameters().get().at(0).tensor; }
  static void load(const RemoteModule& module, double w, double b = 0) {
    module.load_state_dict({{"w", torch::full({3}, w, at::kDouble)}, {"b", torch::full({1}, b, at::kDouble)}})
        .get();
  }
  static void expect_w(const RemoteModule& module, double value) {
    EXPECT_TRUE(w_of(module).allclose(torch::full({3}, value, at::kDouble))) << w_of(module) << value;
  }

  step_support::Agents agents{3};
};

TEST_F(ModuleGuard, TheNextStepStartsFromTheLoadedValues) {
  const auto model = shared<Model>(1);
  const RemoteModule module{model};
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), synchronous, model};
  const auto train = [&] {
    Pass pass{worker(1)};
    pass.backward(model.call<&Model::forward>(pass, torch::ones({3}, at::kDouble)).get()).get();
    optimizer.step(pass).get();  // w -= 0.1 * 2 w
  };
  train();
  expect_w(module, 1.6);
  load(module, 10, 5);
  expect_w(module, 10);
  EXPECT_EQ(module.named_buffers().get().at(0).tensor.item<double>(), 5);
  train();
  expect_w(module, 8);
  train();
  expect_w(module, 6.4);
}

// The pass began before the load. It continues to read w = 2, not 10, and does not fail with "inplace
// operation".
TEST_F(ModuleGuard, AnOpenPassKeepsTheVersionThatItReads) {
  const auto model = shared<Model>(1);
  const RemoteModule module{model};
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), bounded_staleness(1), model};
  optimizer.attached().get();
  Pass pass{worker(1)};
  const at::Tensor x = torch::ones({3}, at::kDouble).requires_grad_();
  const at::Tensor out = model.call<&Model::forward>(pass, x).get();
  load(module, 10);
  expect_w(module, 10);
  const at::Tensor again = model.call<&Model::forward>(pass, x).get();
  EXPECT_EQ(again.item<double>(), 12) << "in the pass it is still 2";
  EXPECT_EQ(model.call<&Model::forward>(torch::ones({3}, at::kDouble)).get().item<double>(), 300);
  pass.backward(out + again).get();
  EXPECT_TRUE(pass.gradient(x).allclose(torch::full({3}, 8.0, at::kDouble)));
  optimizer.step(pass).get();  // one step old, as bounded_staleness(1) permits: 10 - 0.1 * 2 * 2 w
  expect_w(module, 9.2);
}

TEST_F(ModuleGuard, ASynchronousStepOfValuesReadBeforeALoadIsRefused) {
  const auto model = shared<Model>(1);
  const RemoteModule module{model};
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), synchronous, model};
  optimizer.attached().get();
  Pass pass{worker(1)};
  pass.backward(model.call<&Model::forward>(pass, torch::ones({3}, at::kDouble)).get()).get();
  load(module, 10);
  refusal(rpc::ErrorKind::failed_precondition, [&] { optimizer.step(pass).get(); });
  expect_w(module, 10);
}

// One trainer's step waits for that of the other. The load occurs between the two.
TEST_F(ModuleGuard, ALoadFailsTheStepsThatWaitForTheirRound) {
  const auto a_model = shared<Model>(1), b_model = shared<Model>(2);
  DistributedOptimizer a{worker(1), torch::optim::SGDOptions(0.1), synchronous(2), a_model};
  DistributedOptimizer b{worker(2), torch::optim::SGDOptions(0.1), synchronous(2), b_model};
  a.attached().get();
  b.attached().get();
  Pass pass{worker(1)};
  pass.backward(a_model.call<&Model::forward>(pass, torch::ones({3}, at::kDouble)).get()).get();
  auto waiting = a.step(pass);
  load(RemoteModule{a_model}, 10);  // after the step in the object's queue
  refusal(rpc::ErrorKind::failed_precondition, [&] { std::move(waiting).get(); });
  expect_w(RemoteModule{b_model}, 10);
}

TEST_F(ModuleGuard, ChangesOfTypeOrRequiresGradAreRefused) {
  const auto model = shared<Model>(1);
  const RemoteModule module{model};
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), synchronous, model};
  optimizer.attached().get();
  refusal(rpc::ErrorKind::failed_precondition, [&] { module.to({}, "float32").get(); });
  refusal(rpc::ErrorKind::failed_precondition, [&] { module.requires_grad(false).get(); });
  module.eval().get();
  expect_w(module, 2);
}

// An RRef to a parameter reads the version that its pass is pinned to, as the module's methods do.
TEST_F(ModuleGuard, ParametersBehindRRefsHaveTheVersionsOfTheirModule) {
  const auto model = shared<Model>(1);
  const RemoteModule module{model};
  const auto parameters = module.remote_parameters().get();
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), bounded_staleness(1), model};
  optimizer.attached().get();
  Pass pass{worker(1)};
  model.call<&Model::forward>(pass, torch::ones({3}, at::kDouble)).get();
  load(module, 10);
  EXPECT_EQ(parameters[0].tensor.to_here(pass).get().sum().item<double>(), 6);
  EXPECT_EQ(parameters[0].tensor.to_here().get().sum().item<double>(), 30);
}

TEST_F(ModuleGuard, ACallThroughTheBaseClassIsGuarded) {
  rref::serve<Model>(worker(0));
  const auto derived = shared<Derived>(1);
  const rref::RRef<Model> model = derived;
  const RemoteModule module{derived};
  DistributedOptimizer optimizer{worker(1), torch::optim::SGDOptions(0.1), bounded_staleness(1), model};
  optimizer.attached().get();
  Pass pass{worker(1)};
  const at::Tensor x = torch::ones({3}, at::kDouble);
  EXPECT_EQ(model.call<&Model::forward>(pass, x).get().item<double>(), 12);
  load(module, 10);
  EXPECT_EQ(model.call<&Model::forward>(pass, x).get().item<double>(), 12);
  EXPECT_EQ(derived.call<&Derived::version>().get(), 2);
}

}  // namespace
}  // namespace weft::dist_optim::module_guard_test
