// DistLBFGS over agents of one process equals torch::optim::LBFGS in one process. Also tests steps that fail.
#include <weft/dist_optim/dist_lbfgs.h>
#include <weft/dist_optim/lbfgs/internal/service.h>
#include <weft/dist_optim/service/internal/owner_call.h>

#include "tests/dist_optim/step_support.h"
#include "tests/support/cluster.h"
#include "tests/support/errors.h"

namespace weft::dist_optim::dist_lbfgs_test {
namespace {

using namespace step_support;
using Evaluation = DistLBFGS::Evaluation;
using Objects = StepError::Objects;
using torch::optim::LBFGSOptions;
using Layers = std::vector<rref::RRef<Layer>>;

at::Tensor input(double i) { return numbers({5, 4}, 0.3 * i); }
at::Tensor target(double i) { return 0.5 * numbers({5, 4}, 2 + i).square(); }

// Records what the closure saw in each evaluation. before(n) runs before the n-th evaluation, counted from 1.
struct Watch {
  std::vector<double> losses;
  std::function<void(std::size_t)> before = [](std::size_t) {};
};

rpc::Task<Evaluation> evaluate(rpc::Agent& agent, Layers layers, double batch, Watch& watch) {
  watch.before(watch.losses.size() + 1);
  dist_autograd::Pass pass{agent};
  at::Tensor x = input(batch);
  for (const auto& layer : layers) x = co_await layer.call<&Layer::forward>(pass, x);
  const at::Tensor loss = (x - target(batch)).square().sum();
  co_await pass.backward(loss);
  watch.losses.push_back(loss.item<double>());
  co_return Evaluation{std::move(pass), watch.losses.back()};
}

std::vector<rref::ReferencePtr> references(const Layers& layers) {
  std::vector<rref::ReferencePtr> all;
  for (const auto& layer : layers) all.push_back(layer.reference());
  return all;
}

// A sequence of layers, each on one of these agents. The last agent is the trainer.
class Chain {
 public:
  Chain(Agents& agents, std::size_t trainer, const std::vector<std::size_t>& owners)
      : agents_(agents), trainer_(trainer) {
    for (std::size_t i = 0; i < owners.size(); ++i) {
      const auto seed = static_cast<std::int64_t>(i + 1);
      layers.push_back(rref::create<Layer>(agents.peer(trainer, owners[i]), seed));
      local.push_back(std::make_shared<Layer>(seed));
    }
  }
  rpc::Agent& trainer() { return agents_[trainer_]; }
  DistLBFGS::Closure closure(double batch = 0) {
    return [this, batch] { return evaluate(trainer(), layers, batch, watch); };
  }
  std::vector<at::Tensor> local_parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& layer : local)
      for (auto& one : layer->parameters()) all.push_back(one);
    return all;
  }
  double local_step(torch::optim::LBFGS& lbfgs, double batch = 0) {
    return lbfgs
        .step([&] {
          lbfgs.zero_grad();
          at::Tensor x = input(batch);
          for (const auto& layer : local) x = layer->forward(x);
          at::Tensor loss = (x - target(batch)).square().sum();
          loss.backward();
          local_losses.push_back(loss.item<double>());
          return loss;
        })
        .item<double>();
  }
  std::vector<at::Tensor> values(std::size_t i) { return layers[i].call<&Layer::values>().get(); }
  void expect_near_local(double tolerance = 1e-9) {
    ASSERT_EQ(watch.losses.size(), local_losses.size());
    for (std::size_t i = 0; i < local_losses.size(); ++i)
      EXPECT_NEAR(watch.losses[i], local_losses[i], tolerance * std::abs(local_losses[i])) << i;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto got = values(i);
      const auto want = local[i]->values();
      for (std::size_t j = 0; j < want.size(); ++j)
        EXPECT_LE((got[j] - want[j]).abs().max().item<double>(),
                  tolerance * want[j].abs().max().item<double>())
            << "layer " << i << ", parameter " << j;
    }
  }
  void expect_as_at_first(std::size_t i) {
    expect_equal(values(i), Layer(static_cast<std::int64_t>(i + 1)).values());
  }

 private:
  Agents& agents_;
  const std::size_t trainer_;

 public:
  Layers layers;
  std::vector<std::shared_ptr<Layer>> local;
  Watch watch;
  std::vector<double> local_losses;
};

// The workers of the layers; the trainer is worker 3.
struct Places {
  std::string name;
  std::vector<std::size_t> owners;
};
void PrintTo(const Places& places, std::ostream* out) { *out << places.name; }

class DistLbfgs : public testing::TestWithParam<Places> {
 protected:
  // Runs steps over two alternating batches, as torch::optim::LBFGS does.
  void expect_as_one_process(const LBFGSOptions& options, int steps, bool one_batch = false) {
    Agents agents(4);
    Chain chain(agents, 3, GetParam().owners);
    DistLBFGS optimizer(chain.trainer(), options, references(chain.layers));
    torch::optim::LBFGS lbfgs(chain.local_parameters(), options);
    for (int i = 0; i < steps; ++i) {
      const double batch = one_batch ? 0 : i % 2;
      const std::size_t before = chain.watch.losses.size();
      const LBFGSResult result = optimizer.step(chain.closure(batch)).get();
      const double loss = chain.local_step(lbfgs, batch);
      EXPECT_NEAR(result.loss, loss, 1e-9 * loss);
      EXPECT_EQ(static_cast<std::size_t>(result.evaluations), chain.watch.losses.size() - before);
      chain.expect_near_local();
    }
    const auto& losses = chain.watch.losses;
    EXPECT_LT(*std::min_element(losses.begin(), losses.end()), 0.9 * losses.front());
  }
};
INSTANTIATE_TEST_SUITE_P(Owners, DistLbfgs,
                         testing::Values(Places{"One", {0, 0}}, Places{"Two", {0, 1}},
                                         Places{"Three", {0, 1, 2}}, Places{"OneIsLocal", {0, 3}}),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistLbfgs, EqualsLibTorchWithAFixedStep) { expect_as_one_process(LBFGSOptions(0.1).max_iter(5), 4); }
TEST_P(DistLbfgs, EqualsLibTorchWithStrongWolfe) {
  expect_as_one_process(LBFGSOptions(1).max_iter(6).line_search_fn("strong_wolfe"), 3);
}
TEST_P(DistLbfgs, EqualsLibTorchWithAShortHistory) {
  expect_as_one_process(LBFGSOptions(0.2).max_iter(8).history_size(3), 2);
  expect_as_one_process(LBFGSOptions(1).max_iter(8).history_size(2).line_search_fn("strong_wolfe"), 2);
}
TEST_P(DistLbfgs, EqualsLibTorchIfALimitEndsTheStep) {
  expect_as_one_process(LBFGSOptions(0.1).max_iter(20).max_eval(4), 3);
  expect_as_one_process(LBFGSOptions(1).max_iter(20).max_eval(7).line_search_fn("strong_wolfe"), 2);
  expect_as_one_process(LBFGSOptions(0.1).max_iter(20).tolerance_change(0.05), 3);
  expect_as_one_process(LBFGSOptions(0.1).max_iter(20).tolerance_grad(1.5), 3, true);
}

// --- Functions of two numbers, one on each worker

struct Number : torch::nn::Module {
  explicit Number(double initial) { x = register_parameter("x", torch::tensor(initial, at::kDouble)); }
  at::Tensor x;
  at::Tensor value() { return x * 1; }
  using Service = rpc::Service<"test.number", rpc::Constructor<double>, rpc::Method<"value", &Number::value>>;
};

using Function = at::Tensor (*)(const at::Tensor& x, const at::Tensor& y);
at::Tensor rosenbrock(const at::Tensor& x, const at::Tensor& y) {
  return (1 - x).square() + 100 * (y - x.square()).square();
}
at::Tensor waves(const at::Tensor& x, const at::Tensor& y) {
  return at::sin(3 * x) + at::sin(5 * y + x) + 0.1 * (x * x + y * y);
}

at::Tensor kinks(const at::Tensor& x, const at::Tensor& y) {
  return at::abs(x) + 0.7 * at::abs(y - 0.3 * x) + 0.1 * x * x;
}
at::Tensor cliff(const at::Tensor& x, const at::Tensor& y) {
  return x + 0.5 * y + 5 * (x < 1).to(at::kDouble);
}
at::Tensor plain(const at::Tensor& x, const at::Tensor& y) { return 1e-3 * (x.square() + 3 * y.square()); }

rpc::Task<Evaluation> evaluate_at(rpc::Agent& agent, Function function, rref::RRef<Number> x,
                                  rref::RRef<Number> y, std::vector<double>& losses) {
  dist_autograd::Pass pass{agent};
  const at::Tensor a = co_await x.call<&Number::value>(pass);
  const at::Tensor b = co_await y.call<&Number::value>(pass);
  const at::Tensor loss = function(a, b);
  co_await pass.backward(loss);
  losses.push_back(loss.item<double>());
  co_return Evaluation{std::move(pass), losses.back()};
}

class OfTwoNumbers : public testing::Test {
 protected:
  OfTwoNumbers() {
    for (std::size_t i = 0; i < 2; ++i) agents[i].allow_create<Number>();
  }
  // Returns the losses of all evaluations and the end points of the steps.
  void expect_as_one_process(Function function, double x0, double y0, const LBFGSOptions& options, int steps,
                             double tolerance = 1e-9) {
    const auto x = rref::create<Number>(agents.peer(2, 0), x0),
               y = rref::create<Number>(agents.peer(2, 1), y0);
    DistLBFGS optimizer{agents[2], options, x, y};
    Number a(x0), b(y0);
    torch::optim::LBFGS lbfgs(std::vector<at::Tensor>{a.x, b.x}, options);
    std::vector<double> losses, want;
    for (int i = 0; i < steps; ++i) {
      optimizer.step([&] { return evaluate_at(agents[2], function, x, y, losses); }).get();
      lbfgs.step([&] {
        lbfgs.zero_grad();
        at::Tensor loss = function(a.x, b.x);
        loss.backward();
        want.push_back(loss.item<double>());
        return loss;
      });
    }
    ASSERT_EQ(losses.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(losses[i], want[i], tolerance * (1 + std::abs(want[i]))) << i;
    EXPECT_NEAR(x.call<&Number::value>().get().item<double>(), a.x.item<double>(), tolerance);
    EXPECT_NEAR(y.call<&Number::value>().get().item<double>(), b.x.item<double>(), tolerance);
    last_loss = want.back();
  }

  Agents agents{3};
  double last_loss = 0;
};

TEST_F(OfTwoNumbers, RosenbrocksMinimumIsFound) {
  auto options = LBFGSOptions(1).max_iter(100).history_size(5).line_search_fn("strong_wolfe");
  expect_as_one_process(rosenbrock, -1.5, 2, options, 2, 1e-7);
  EXPECT_LT(last_loss, 1e-8);
  // The descent is below the tolerance, and no parameter changes.
  expect_as_one_process(rosenbrock, 0.5, 0.3, options.tolerance_change(1e3), 3);
}

// Line searches that end with an earlier trial than the last one, or at their start.
TEST_F(OfTwoNumbers, LineSearchesOnWavesEqualThoseOfLibTorch) {
  const auto options =
      LBFGSOptions(3).max_iter(12).max_eval(200).history_size(3).line_search_fn("strong_wolfe");
  for (int i = 0; i < 12; ++i) {
    expect_as_one_process(waves, 0.3 * i, 2 - 0.4 * i, options, 2, 1e-6);
    expect_as_one_process(kinks, 0.3 * i, 2 - 0.4 * i, options, 2, 1e-6);
    expect_as_one_process(cliff, 1.5 + 0.3 * i, 2 - 0.4 * i, options, 2, 1e-6);
  }
}

TEST_F(OfTwoNumbers, AStepEndsIfTheLossHardlyChanges) {
  expect_as_one_process(plain, 3, -2, LBFGSOptions(0.5).tolerance_change(1.5e-4), 2);
}

// --- Kinds of gradients

rpc::Task<Evaluation> evaluate_table(rpc::Agent& agent, rref::RRef<Table> table, rref::RRef<Layer> layer) {
  std::vector<dist_autograd::Pass> passes;  // gradients are summed
  double sum = 0;
  for (const at::Tensor& ids : {torch::tensor({0, 2, 2}), torch::tensor({1, 2, 5})}) {
    auto& pass = passes.emplace_back(agent);
    const at::Tensor rows = co_await table.call<&Table::look_up>(pass, ids);
    const at::Tensor loss = (co_await layer.call<&Layer::forward>(pass, rows)).square().sum();
    co_await pass.backward(loss);
    sum += loss.item<double>();
  }
  co_return Evaluation{std::move(passes), sum};
}

TEST(DistLbfgsGradients, MayBeSparseOrOfSeveralPassesOrMissing) {
  Agents agents(3);
  const auto table = rref::create<Table>(agents.peer(2, 0), std::int64_t{1});
  const auto layer = rref::create<Layer>(agents.peer(2, 1), std::int64_t{2}),
             unused = rref::create<Layer>(agents.peer(2, 1), std::int64_t{3});
  const auto options = LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe");
  DistLBFGS optimizer{agents[2], options, table, layer, unused};
  Table local_table(1);
  Layer local_layer(2), local_unused(3);
  std::vector<at::Tensor> parameters = local_table.parameters();
  for (auto& one : local_layer.parameters()) parameters.push_back(one);
  for (auto& one : local_unused.parameters()) parameters.push_back(one);
  torch::optim::LBFGS lbfgs(parameters, options);
  for (int i = 0; i < 2; ++i) {
    optimizer.step([&] { return evaluate_table(agents[2], table, layer); }).get();
    lbfgs.step([&] {
      lbfgs.zero_grad();
      at::Tensor loss = local_layer.forward(local_table.look_up(torch::tensor({0, 2, 2}))).square().sum() +
                        local_layer.forward(local_table.look_up(torch::tensor({1, 2, 5}))).square().sum();
      loss.backward();
      return loss;
    });
  }
  const auto expect_near = [](const at::Tensor& got, const at::Tensor& want) {
    EXPECT_TRUE(got.allclose(want, 1e-9, 1e-9)) << got << want;
  };
  expect_near(table.call<&Table::values>().get()[0], local_table.values()[0]);
  expect_near(layer.call<&Layer::values>().get()[0], local_layer.values()[0]);
  expect_equal(unused.call<&Layer::values>().get(), local_unused.values());
}

// --- The cost of a step

class Counted : public testing::Test {
 protected:
  OwnerStats stats() { return ask<&OptimizerService::stats>(chain.layers[0].reference()).get(); }

  Agents agents{2};
  Chain chain{agents, 1, {0}};
};

TEST_F(Counted, PassesOfAClosureAllowStepsInPlace) {
  DistLBFGS optimizer{agents[1], LBFGSOptions(0.1).max_iter(5), chain.layers[0]};
  EXPECT_EQ(optimizer.step(chain.closure()).get().iterations, 5);
  EXPECT_EQ(stats().version, 5U);
  EXPECT_EQ(stats().copied_bytes, 0U);
  EXPECT_EQ(stats().open_passes, 0U);
}

// The trainer reports the end of the pass late.
TEST_F(Counted, OwnersChangeParametersInPlaceWhileThePassIsOpen) {
  const auto layer = chain.layers[0].reference();
  ask<&LbfgsService::attach>(layer, std::uint64_t{7}, std::uint64_t{3}).get();
  dist_autograd::Pass pass{agents[1]};
  pass.backward(chain.layers[0].call<&Layer::forward>(pass, input(0)).get().sum()).get();
  LbfgsEvaluation evaluation{{pass.id()}, 1, {}, true};
  const LbfgsMeasures measures = ask<&LbfgsService::take>(layer, std::uint64_t{7}, evaluation).get();
  EXPECT_GT(measures.largest, 0);
  ask<&LbfgsService::direct>(layer, std::uint64_t{7}, LbfgsDirection{}, 0.1, false).get();
  EXPECT_EQ(stats().version, 1U);
  EXPECT_EQ(stats().copied_bytes, 0U);
}

TEST_F(Counted, OwnersRefuseRequestsInTheWrongOrder) {
  const auto layer = chain.layers[0].reference();
  const std::uint64_t number = 7;
  ask<&LbfgsService::attach>(layer, number, std::uint64_t{3}).get();
  const auto refusal = [](auto future) { return test::kind_of([&] { return future.get(), 0; }); };
  const auto out_of_turn = rpc::ErrorKind::failed_precondition;
  EXPECT_EQ(refusal(ask<&LbfgsService::direct>(layer, number, LbfgsDirection{}, 1., false)), out_of_turn);
  EXPECT_EQ(test::kind_of([&] { return ask<&LbfgsService::move>(layer, number, 1.).get(), 0; }), out_of_turn);
  const LbfgsEvaluation nothing{{}, 1, {}, true};
  EXPECT_EQ(refusal(ask<&LbfgsService::take>(layer, number + 1, nothing)), out_of_turn);
  ask<&LbfgsService::take>(layer, number, nothing).get();
  LbfgsDirection direction;
  direction.joins = true;
  EXPECT_EQ(refusal(ask<&LbfgsService::direct>(layer, number, direction, 1., false)), out_of_turn);
  direction = {false, 1, {1}, {1}};
  EXPECT_EQ(refusal(ask<&LbfgsService::direct>(layer, number, direction, 1., false)), out_of_turn);
  ask<&LbfgsService::direct>(layer, number, LbfgsDirection{}, 1., false).get();
  EXPECT_EQ(refusal(ask<&LbfgsService::settle>(layer, number, 1., std::uint64_t{5})), out_of_turn);
  EXPECT_EQ(refusal(ask<&LbfgsService::settle>(layer, number, 0., std::uint64_t{0})), std::nullopt);
}

TEST_F(Counted, AnOpenPassKeepsItsVersion) {
  DistLBFGS optimizer{agents[1], LBFGSOptions(0.1).max_iter(3), chain.layers[0]};
  optimizer.attached().get();
  dist_autograd::Pass pass{agents[1]};
  const at::Tensor x = input(1).requires_grad_();
  const at::Tensor loss = chain.layers[0].call<&Layer::forward>(pass, x).get().square().sum();
  optimizer.step(chain.closure()).get();
  pass.backward(loss).get();
  const at::Tensor oracle_x = input(1).requires_grad_();
  Layer(1).forward(oracle_x).square().sum().backward();
  EXPECT_TRUE(pass.gradient(x).allclose(oracle_x.grad(), 1e-12, 1e-12));
}

// --- Exclusive use of the parameters

class OneOfMany : public testing::Test {
 protected:
  OneOfMany()
      : mine(rref::create<Layer>(agents.peer(1, 0), rref::Named{"layer"}, std::int64_t{1})),
        theirs(rref::create<Layer>(agents.peer(2, 0), rref::Named{"layer"}, std::int64_t{1})) {}
  template <class Optimizer>
  std::optional<rpc::ErrorKind> refusal(Optimizer& optimizer) {
    return test::kind_of([&] { return optimizer.attached().get(), 0; });
  }

  Agents agents{3};
  rref::RRef<Layer> mine, theirs;
};

TEST_F(OneOfMany, OtherOptimizersAreRefusedWhileItIsAttached) {
  {
    DistLBFGS first{agents[1], LBFGSOptions(1), mine};
    first.attached().get();
    DistLBFGS second{agents[2], LBFGSOptions(1), theirs}, third{agents[1], LBFGSOptions(1), mine};
    DistributedOptimizer sgd{agents[2], torch::optim::SGDOptions(0.1), synchronous, theirs};
    EXPECT_EQ(refusal(second), rpc::ErrorKind::failed_precondition);
    EXPECT_EQ(refusal(third), rpc::ErrorKind::failed_precondition);
    EXPECT_EQ(refusal(sgd), rpc::ErrorKind::failed_precondition);
    Watch watch;
    const Layers layers{theirs};
    EXPECT_EQ(test::kind_of([&] {
                return second.step([&] { return evaluate(agents[2], layers, 0, watch); }).get().loss;
              }),
              rpc::ErrorKind::failed_precondition);
    EXPECT_TRUE(watch.losses.empty());
  }
  mine.call<&Layer::values>().get();  // after the end of the first
  DistributedOptimizer sgd{agents[2], torch::optim::SGDOptions(0.1), synchronous, theirs};
  EXPECT_EQ(refusal(sgd), std::nullopt);
}

TEST_F(OneOfMany, IsRefusedWhileOtherOptimizersAreAttached) {
  {
    DistributedOptimizer sgd{agents[2], torch::optim::SGDOptions(0.1), bounded_staleness(1), theirs};
    sgd.attached().get();
    DistLBFGS lbfgs{agents[1], LBFGSOptions(1), mine};
    EXPECT_EQ(refusal(lbfgs), rpc::ErrorKind::failed_precondition);
  }
  theirs.call<&Layer::values>().get();
  DistLBFGS lbfgs{agents[1], LBFGSOptions(1), mine};
  EXPECT_EQ(refusal(lbfgs), std::nullopt);
}

TEST_F(OneOfMany, InvalidOptionsAreRefused) {
  for (const auto& options : {LBFGSOptions(-1), LBFGSOptions(1).max_iter(0), LBFGSOptions(1).history_size(0),
                              LBFGSOptions(1).line_search_fn("backtracking")})
    EXPECT_EQ(test::kind_of([&] { return DistLBFGS{agents[1], options, mine}, 0; }),
              rpc::ErrorKind::invalid_argument);
}

// --- Steps that fail

struct Tired : std::runtime_error {
  Tired() : std::runtime_error("tired") {}
};

TEST(DistLbfgsFailure, AnExceptionOfTheClosureIsRethrownAndTheStepIsUndone) {
  for (const bool line_search : {false, true}) {
    Agents agents(3);
    Chain chain(agents, 2, {0, 1});
    auto options = LBFGSOptions(0.1).max_iter(5);
    if (line_search) options.line_search_fn("strong_wolfe");
    DistLBFGS optimizer{agents[2], options, chain.layers[0], chain.layers[1]};
    const auto step_of_another = [&] {
      torch::optim::LBFGS lbfgs(chain.local_parameters(), options);
      chain.local_step(lbfgs);
    };
    optimizer.step(chain.closure()).get();
    step_of_another();
    chain.expect_near_local();
    const std::vector<double> losses = chain.watch.losses;
    chain.watch.before = [&](std::size_t n) {
      if (n == losses.size() + 4) throw Tired();
    };
    EXPECT_THROW(optimizer.step(chain.closure()).get(), Tired);
    chain.watch = {losses};
    chain.expect_near_local();  // the parameters as after the first step
    optimizer.step(chain.closure()).get();
    step_of_another();
    chain.expect_near_local();
  }
}

TEST(DistLbfgsFailure, AnEvaluationWhosePassWasReleasedIsRefused) {
  Agents agents(2);
  Chain chain(agents, 1, {0});
  DistLBFGS optimizer{agents[1], LBFGSOptions(1), chain.layers[0]};
  const auto released = [](rpc::Agent& agent) -> rpc::Task<Evaluation> {
    dist_autograd::Pass pass{agent};
    pass.release();
    co_return Evaluation{std::move(pass), 1};
  };
  const StepError error = step_error(optimizer.step([&] { return released(agents[1]); }));
  EXPECT_EQ(error.kind(), rpc::ErrorKind::failed_precondition) << error.what();
  EXPECT_EQ(error.not_stepped(), Objects{0});
}

// The owner of the second layer dies before the fourth evaluation.
TEST(DistLbfgsFailure, AnOwnersDeathUndoesTheStepOnTheOthers) {
  Agents agents(3);
  Chain chain(agents, 2, {0, 1});
  auto optimizer =
      std::make_unique<DistLBFGS>(agents[2], LBFGSOptions(0.1).max_iter(5), chain.layers[0], chain.layers[1]);
  chain.watch.before = [&](std::size_t n) {
    if (n == 4) agents.kill(1);
  };
  const StepError error = step_error(optimizer->step(chain.closure()));
  EXPECT_EQ(error.kind(), rpc::ErrorKind::owner_lost) << error.what();
  EXPECT_EQ(error.stepped(), Objects{}) << error.what();
  EXPECT_EQ(error.not_stepped(), Objects{0}) << error.what();
  EXPECT_EQ(error.unknown(), Objects{1}) << error.what();
  chain.expect_as_at_first(0);
  EXPECT_EQ(test::kind_of([&] { return optimizer->step(chain.closure()).get().loss; }),
            rpc::ErrorKind::failed_precondition);
  // Another optimizer may step the remaining modules after this one is destroyed.
  optimizer.reset();
  DistLBFGS other{agents[2], LBFGSOptions(0.1), chain.layers[0]};
  EXPECT_EQ(test::kind_of([&] { return other.attached().get(), 0; }), std::nullopt);
}

rpc::Task<Evaluation> stop_at(std::size_t last, rpc::Agent& agent, Layers layers, Watch& watch,
                              test::Event& reached, rpc::Future<void>& never) {
  if (watch.losses.size() + 1 == last) {
    reached.set();
    co_await std::move(never);
  }
  co_return co_await evaluate(agent, layers, 0, watch);
}

// The trainer dies between two evaluations, so that no process tells the owners to undo the step.
TEST(DistLbfgsFailure, ATrainersDeathUndoesItsStep) {
  Agents agents(4);
  Layers mine, theirs;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto seed = static_cast<std::int64_t>(i + 1);
    mine.push_back(rref::create<Layer>(agents.peer(2, i), rref::Named{"layer"}, seed));
    theirs.push_back(rref::create<Layer>(agents.peer(3, i), rref::Named{"layer"}, seed));
  }
  DistLBFGS optimizer{agents[2], LBFGSOptions(0.1).max_iter(5), mine[0], mine[1]};
  Watch watch;
  test::Event reached;
  rpc::Promise<void> promise;
  rpc::Future<void> never = promise.future();
  auto step = optimizer.step([&] { return stop_at(4, agents[2], mine, watch, reached, never); });
  reached.wait();
  const auto as_at_first = [&](std::size_t i) {
    return theirs[i].call<&Layer::values>().get()[0].equal(
        Layer(static_cast<std::int64_t>(i + 1)).values()[0]);
  };
  EXPECT_FALSE(as_at_first(0));
  EXPECT_FALSE(as_at_first(1));
  agents.kill(2);
  for (std::size_t i = 0; i < 2; ++i)
    test::eventually("the owner has undone the step", [&] { return as_at_first(i); });
  // Another optimizer may then step them.
  test::eventually("the owners have let go", [&] {
    DistLBFGS other{agents[3], LBFGSOptions(0.1), theirs[0], theirs[1]};
    return !test::kind_of([&] { return other.attached().get(), 0; });
  });
}

}  // namespace
}  // namespace weft::dist_optim::dist_lbfgs_test
