// Several trainers of one agent, and passes whose trainer is another agent than their creator.
#include <weft/dist_optim/service/internal/owner_call.h>

#include <deque>

#include "tests/dist_optim/refusal.h"
#include "tests/dist_optim/step_support.h"

namespace weft::dist_optim::named_trainers_test {
namespace {

using namespace step_support;
using dist_autograd::Pass;

at::Tensor input(double phase) { return numbers({2, 4}, phase); }

DistributedOptimizer::Module module_of(const rref::RRef<Layer>& layer, double rate = 0.1) {
  return {layer.reference(), torch::optim::SGDOptions(rate)};
}

// worker1 creates the passes. The layer is on worker0.
struct NamedTrainers : testing::Test {
  rref::RRef<Layer> layer_of(std::size_t worker) {
    auto layer = rref::create<Layer>(workers.peer(worker, 0), rref::Named{"layer"}, std::int64_t{3});
    layer.ready().get();
    return layer;
  }
  void backward(const Pass& pass, double phase) {
    got(const_cast<Pass&>(pass).backward(
        got(layer.call<&Layer::forward>(pass, input(phase))).square().sum()));
  }

  Agents workers{3};
  const rref::RRef<Layer> layer = layer_of(1);
};

TEST_F(NamedTrainers, EachHasASeatInARound) {
  DistributedOptimizer left{workers[1], synchronous(2), {module_of(layer)}, {}, "left"};
  DistributedOptimizer right{workers[1], synchronous(2), {module_of(layer)}, {}, "right"};
  Layer oracle(3);
  torch::optim::SGD sgd(oracle.parameters(), torch::optim::SGDOptions(0.1));
  for (int i = 0; i < 3; ++i) {
    Pass a{workers[1]}, b{workers[1]};
    got(left.admit(a));
    got(right.admit(b));
    backward(a, i);
    backward(b, i + 0.5);
    auto first = right.step(b);
    EXPECT_EQ(got(right.stats())[0].version, static_cast<std::uint64_t>(i)) << "the round waits for left";
    EXPECT_FALSE(first.ready());
    EXPECT_EQ(got(left.step(a)).versions, std::vector<std::uint64_t>{static_cast<std::uint64_t>(i) + 1});
    got(std::move(first));
    sgd.zero_grad();
    oracle.forward(input(i)).square().sum().backward();
    oracle.forward(input(i + 0.5)).square().sum().backward();
    sgd.step();
  }
  expect_equal(got(layer.call<&Layer::values>()), oracle.values());
}

TEST_F(NamedTrainers, EachHasItsOwnStaleness) {
  DistributedOptimizer left{workers[1], bounded_staleness(0), {module_of(layer)}, {}, "left"};
  DistributedOptimizer right{workers[1], bounded_staleness(0), {module_of(layer)}, {}, "right"};
  Pass a{workers[1]}, b{workers[1]};
  got(left.admit(a));
  got(right.attached());
  auto admitted = right.admit(b);
  backward(a, 1);
  EXPECT_EQ(got(right.stats())[0].waiting_passes, 1U) << "it waits for left's step";
  got(left.step(a));
  got(std::move(admitted));
  backward(b, 2);
  EXPECT_EQ(got(right.step(b)).versions, std::vector<std::uint64_t>{2});
}

TEST_F(NamedTrainers, AStepTakesOnlyPassesOfItsTrainer) {
  DistributedOptimizer left{workers[1], bounded_staleness(4), {module_of(layer)}, {}, "left"};
  DistributedOptimizer right{workers[1], bounded_staleness(4), {module_of(layer)}, {}, "right"};
  Pass a{workers[1]}, unadmitted{workers[1]};
  got(left.admit(a));
  refusal(rpc::ErrorKind::failed_precondition, [&] { got(right.admit(a)); }, "belongs to the trainer 'left'");
  backward(a, 1);
  backward(unadmitted, 1);
  const StepError other = step_error(right.step(a));
  EXPECT_NE(std::string(other.what()).find("belongs to trainer worker1/left"), std::string::npos)
      << other.what();
  step_error(left.step(unadmitted));
  EXPECT_TRUE(got(left.step(a)).applied);
}

TEST_F(NamedTrainers, DieWithTheirAgent) {
  const auto own_layer = layer_of(2);
  DistributedOptimizer left{workers[1], synchronous(3), {module_of(layer)}, {}, "left"};
  DistributedOptimizer right{workers[1], synchronous(3), {module_of(layer)}, {}, "right"};
  DistributedOptimizer third{workers[2], synchronous(3), {module_of(own_layer)}};
  for (auto* one : {&left, &right, &third}) got(one->attached());
  Pass pass{workers[2]};
  got(pass.backward(got(own_layer.call<&Layer::forward>(pass, input(1))).square().sum()));
  auto step = third.step(pass);
  got(own_layer.call<&Layer::values>());  // after the step
  workers.kill(1);
  const StepError error = step_error(std::move(step));
  EXPECT_EQ(error.not_stepped().size() + error.unknown().size(), 1U);
  // All their seats are empty, and the round continues with fewer trainers.
  got(third.set_mode(synchronous(1)));
  Pass again{workers[2]};
  got(again.backward(got(own_layer.call<&Layer::forward>(again, input(1))).square().sum()));
  EXPECT_EQ(got(third.step(again)).versions, std::vector<std::uint64_t>{1});
}

// One handle over a module: the forward of a microbatch, steps of other trainers, then the backward of the
// microbatch.
TEST_F(NamedTrainers, APassReadsTheVersionThatItWasAdmittedAt) {
  DistributedOptimizer optimizer{workers[1], torch::optim::SGDOptions(0.1), bounded_staleness(2), layer};
  Layer oracle(3);
  torch::optim::SGD sgd(oracle.parameters(), torch::optim::SGDOptions(0.1));
  Pass first{workers[1]}, second{workers[1]}, third{workers[1]};
  got(optimizer.admit(first, 0));
  got(optimizer.admit(second, 0));
  backward(first, 1);
  got(optimizer.step(first));
  got(optimizer.admit(third, 0));
  refusal(rpc::ErrorKind::failed_precondition, [&] { got(optimizer.admit(third, 1)); }, "reads version 0");
  at::Tensor mine = input(3).requires_grad_();
  const auto out = got(layer.call<&Layer::forward>(third, mine));
  backward(second, 2);
  got(optimizer.step(second));
  got(third.backward(out.square().sum()));

  at::Tensor expected = input(3).requires_grad_();
  oracle.forward(expected).square().sum().backward();
  EXPECT_TRUE(torch::equal(third.gradient(mine), expected.grad()));
  EXPECT_EQ(got(optimizer.step(third)).versions, std::vector<std::uint64_t>{3});
  Pass late{workers[1]};
  refusal(rpc::ErrorKind::failed_precondition, [&] { got(optimizer.admit(late, 0)); }, "no longer kept");
  Pass released{workers[1]};
  released.release();
  refusal(
      rpc::ErrorKind::failed_precondition, [&] { got(optimizer.admit(released)); },
      "has failed or was released");
}

// A stage worker trains the layer in passes of the driver that calls it.
struct StageWorker {
  rpc::Task<at::Tensor> forward(rpc::CallContext& call, at::Tensor x) {
    passes.push_back(Pass::of(call));
    const Pass& pass = passes.back();
    co_await optimizer->admit(pass);
    co_return co_await layer.call<&Layer::forward>(pass, x);
  }
  rpc::Task<std::vector<std::uint64_t>> step() {
    const StepResult result = co_await optimizer->step(passes.back());
    co_return result.versions;
  }
  std::deque<Pass> passes;
  rref::RRef<Layer> layer;
  std::unique_ptr<DistributedOptimizer> optimizer;
  using Service = rpc::Service<"test.stage_worker", rpc::Method<"forward", &StageWorker::forward>,
                               rpc::Method<"step", &StageWorker::step>>;
};

TEST_F(NamedTrainers, MayBeAnotherAgentThanThePassesOrigin) {
  auto worker = std::make_shared<StageWorker>();
  worker->layer = layer_of(2);
  worker->optimizer = std::make_unique<DistributedOptimizer>(workers[2], torch::optim::SGDOptions(0.1),
                                                             synchronous, worker->layer);
  workers[2].serve(worker);
  Layer oracle(3);
  torch::optim::SGD sgd(oracle.parameters(), torch::optim::SGDOptions(0.1));
  for (int i = 0; i < 3; ++i) {
    Pass pass{workers[1]};
    const auto stage = workers.peer(1, 2);
    got(pass.backward(got(stage.call<&StageWorker::forward>(pass, input(i))).square().sum()));
    EXPECT_EQ(got(stage.call<&StageWorker::step>()),
              std::vector<std::uint64_t>{static_cast<std::uint64_t>(i) + 1});
    sgd.zero_grad();
    oracle.forward(input(i)).square().sum().backward();
    sgd.step();
  }
  expect_equal(got(layer.call<&Layer::values>()), oracle.values());
  worker->optimizer.reset();
}

TEST_F(NamedTrainers, DoNotAdmitPassesOfOthersToModulesWithoutThem) {
  Pass pass{workers[1]};
  const auto theirs = layer_of(2);
  refusal(
      rpc::ErrorKind::invalid_argument,
      [&] {
        got(ask<&OptimizerService::admit>(theirs.reference(), pass.id(), std::optional<std::string>(),
                                          std::optional<std::uint64_t>()));
      },
      "is not a pass of worker2");
}

TEST_F(NamedTrainers, OutliveAnotherAgentWithTheSameIncarnation) {
  DistributedOptimizer optimizer{workers[1], torch::optim::SGDOptions(0.1), synchronous(2), layer};
  DistributedOptimizer named{workers[2], synchronous(2), {module_of(layer_of(2))}, {}, "named"};
  got(optimizer.attached());
  got(named.attached());
  const auto owner = OptimizerLayer::of(*workers[0].core());
  const auto trainers = [&] { return owner->guards().at(0)->owned().trainers().size(); };
  const auto lose = [&](const std::string& name, std::size_t worker) {
    owner->peer_gone({name, workers[worker].id().incarnation},
                     rpc::Error(rpc::ErrorKind::peer_lost, "the test says so"));
  };
  ASSERT_EQ(trainers(), 2U);
  for (const char* name : {"mallory", "w", "worker", "worker11", "worker1/named"}) {
    lose(name, 1);
    lose(name, 2);
  }
  EXPECT_EQ(trainers(), 2U);
  lose("worker2", 2);
  EXPECT_EQ(trainers(), 1U);
}

}  // namespace
}  // namespace weft::dist_optim::named_trainers_test
