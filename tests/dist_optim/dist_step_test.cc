// One step over several objects. Their gradients may be clipped, averaged and unscaled. All objects step, or
// no object does.
#include <weft/dist_autograd/internal/autograd_layer.h>

#include <torch/nn/utils/clip_grad.h>

#include "tests/dist_optim/refusal.h"
#include "tests/dist_optim/step_support.h"
#include "tests/support/cluster.h"
#include "tests/support/held_calls.h"

namespace weft::dist_optim::dist_step_test {
namespace {

using namespace step_support;
using Objects = StepError::Objects;
using torch::optim::SGDOptions;

constexpr double infinity = std::numeric_limits<double>::infinity();

// Two layers, the second one on the output of the first one: behind RRefs, and in one process.
class TwoLayers {
 public:
  // On workers 0 and `second`; the trainer is worker 2.
  TwoLayers(Agents& agents, std::size_t second)
      : agents_(agents),
        a(rref::create<Layer>(agents.peer(2, 0), std::int64_t{1})),
        b(rref::create<Layer>(agents.peer(2, second), std::int64_t{2})) {}

  dist_autograd::Pass pass(const at::Tensor& input, double scale = 1) {
    dist_autograd::Pass pass{agents_[2]};
    const at::Tensor hidden = got(a.call<&Layer::forward>(pass, input));
    got(pass.backward(got(b.call<&Layer::forward>(pass, hidden)).square().sum() * scale));
    return pass;
  }
  void local_backward(const at::Tensor& input, double scale = 1) {
    (local_b.forward(local_a.forward(input)).square().sum() * scale).backward();
  }
  std::vector<at::Tensor> local_parameters() {
    auto all = local_a.parameters();
    for (auto& one : local_b.parameters()) all.push_back(one);
    return all;
  }
  // The step of an optimizer in one process.
  template <class Optimizer>
  void local_step(Optimizer& optimizer, const at::Tensor& input) {
    optimizer.zero_grad();
    local_backward(input);
    optimizer.step();
  }
  void expect_as_local() {
    expect_equal(got(a.call<&Layer::values>()), local_a.values());
    expect_equal(got(b.call<&Layer::values>()), local_b.values());
  }

 private:
  Agents& agents_;

 public:
  rref::RRef<Layer> a, b;
  Layer local_a{1}, local_b{2};
};

at::Tensor input(int i) { return numbers({3, 4}, 0.3 * i); }

// The second layer is on the same owner as the first one, or on a separate owner.
class DistStep : public testing::TestWithParam<std::size_t> {
 protected:
  DistributedOptimizer optimizer_of(OptimizerSpec spec, StepMode mode = synchronous) {
    return DistributedOptimizer{agents[2], std::move(spec), mode, layers.a, layers.b};
  }

  Agents agents{3};
  TwoLayers layers{agents, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Owners, DistStep, testing::Values(0, 1),
                         [](const auto& info) { return std::string(info.param == 0 ? "One" : "Two"); });

TEST_P(DistStep, ClipsByTheNormOverAllOwners) {
  auto optimizer = optimizer_of(torch::optim::AdamOptions(1e-2));
  torch::optim::Adam adam(layers.local_parameters(), torch::optim::AdamOptions(1e-2));
  int i = 0;
  for (auto [p, most] : std::vector<std::pair<double, double>>{
           {2.0, 0.1}, {1.0, 0.5}, {3.0, 0.1}, {infinity, 0.01}, {2.0, 1e6}}) {
    const auto result = got(optimizer.step(layers.pass(input(i)), {.clip_norm = most, .norm_type = p}));
    adam.zero_grad();
    layers.local_backward(input(i++));
    const double norm = torch::nn::utils::clip_grad_norm_(layers.local_parameters(), most, p);
    EXPECT_NEAR(result.total_norm, norm, 1e-12 * norm);
    EXPECT_TRUE(result.applied);
    adam.step();
    layers.expect_as_local();
  }
}

TEST_P(DistStep, ClipsByValue) {
  auto optimizer = optimizer_of(SGDOptions(0.1), bounded_staleness(0));
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  got(optimizer.step(layers.pass(input(1)), {.clip_value = 0.05}));
  layers.local_backward(input(1));
  torch::nn::utils::clip_grad_value_(layers.local_parameters(), 0.05);
  sgd.step();
  layers.expect_as_local();
}

TEST_P(DistStep, AccumulatesOverPasses) {
  auto optimizer = optimizer_of(SGDOptions(0.1));
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  for (bool mean : {false, true}) {
    std::vector<dist_autograd::Pass> passes;
    for (int i = 0; i < 3; ++i) passes.push_back(layers.pass(input(i)));
    got(optimizer.step(passes, {.mean = mean}));
    sgd.zero_grad();
    for (int i = 0; i < 3; ++i) layers.local_backward(input(i), mean ? 1.0 / 3 : 1);
    sgd.step();
    layers.expect_as_local();
  }
}

TEST_P(DistStep, ANormThatIsNotFiniteMayBeAnError) {
  auto optimizer = optimizer_of(SGDOptions(0.1));
  at::Tensor bad = input(0).clone();
  bad[0][0] = infinity;  // the first layer's gradient is not a number
  refusal(rpc::ErrorKind::failed_precondition,
          [&] { got(optimizer.step(layers.pass(bad), {.clip_norm = 1, .error_if_nonfinite = true})); });
  layers.expect_as_local();  // no object has stepped
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  got(optimizer.step(layers.pass(input(1)), {.clip_norm = 1e6, .error_if_nonfinite = true}));
  layers.local_backward(input(1));
  sgd.step();
  layers.expect_as_local();
}

TEST_P(DistStep, AScalerSkipsTheStepEverywhere) {
  auto optimizer = optimizer_of(torch::optim::AdamOptions(1e-2), bounded_staleness(1));
  torch::optim::Adam adam(layers.local_parameters(), torch::optim::AdamOptions(1e-2));
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  at::Tensor bad = input(0).clone();
  bad[0][0] = infinity;  // only on the first layer's owner
  for (int i = 0; i < 4; ++i) {
    const auto result = got(optimizer.step(layers.pass(i == 1 ? bad : input(i), scaler.factor()),
                                           {.loss_scale = scaler.factor()}));
    scaler.update(result.applied);
    EXPECT_EQ(result.applied, i != 1);
    EXPECT_EQ(result.versions, std::vector<std::uint64_t>(2, static_cast<std::uint64_t>(i < 1 ? 1 : i)));
    if (i != 1) {
      layers.local_step(adam, input(i));
    }
    layers.expect_as_local();
  }
  EXPECT_EQ(scaler.factor(), 1024);  // halved once, doubled once
}

TEST_P(DistStep, ARateAppliesFromTheNextStep) {
  auto optimizer = optimizer_of(SGDOptions(0.1), bounded_staleness(1));
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  // All passes run first, so that the steps and the rate change are in flight together.
  const auto first = layers.pass(input(0)), second = layers.pass(input(1));
  auto one = optimizer.step(first);
  auto rate = optimizer.set_learning_rate(0.01);
  auto other = optimizer.step(second);
  layers.local_backward(input(0));
  std::vector<at::Tensor> gradients;
  for (auto& parameter : layers.local_parameters()) gradients.push_back(parameter.grad().clone());
  sgd.zero_grad();
  layers.local_backward(input(1));
  {
    at::NoGradGuard no_grad;
    auto parameters = layers.local_parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].sub_(0.1 * gradients[i] + 0.01 * parameters[i].grad());
  }
  got(std::move(one));
  got(std::move(rate));
  got(std::move(other));
  layers.expect_as_local();
  EXPECT_EQ(got(optimizer.save_state()).modules.at(1).learning_rates.at(""), 0.01);
}

TEST_P(DistStep, APassStepsOnce) {
  DistributedOptimizer second{agents[2], SGDOptions(0.1), bounded_staleness(3), layers.b};
  auto both = optimizer_of(SGDOptions(0.1), bounded_staleness(3));
  torch::optim::SGD sgd(layers.local_b.parameters(), SGDOptions(0.1));
  const auto pass = layers.pass(input(0));
  got(second.step(pass));
  layers.local_backward(input(0));
  sgd.step();
  const StepError error = step_error(both.step(pass));
  EXPECT_EQ(error.kind(), rpc::ErrorKind::failed_precondition) << error.what();
  EXPECT_EQ(error.stepped(), Objects{});
  EXPECT_EQ(error.unknown(), Objects{});
  EXPECT_EQ(error.not_stepped(), (Objects{0, 1}));
  layers.expect_as_local();               // the first layer has not stepped
  got(both.step(layers.pass(input(1))));  // nothing prevents later steps
}

TEST_P(DistStep, APassWithoutABackwardIsRefusedAndStaysOpen) {
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  for (const StepMode mode : {StepMode(synchronous), bounded_staleness(0)}) {
    auto optimizer = optimizer_of(SGDOptions(0.1), mode);
    dist_autograd::Pass pass{agents[2]};
    const at::Tensor hidden = got(layers.a.call<&Layer::forward>(pass, input(0)));
    const at::Tensor out = got(layers.b.call<&Layer::forward>(pass, hidden));
    refusal(rpc::ErrorKind::failed_precondition, [&] { got(optimizer.step(pass)); }, "no backward");
    layers.expect_as_local();
    got(pass.backward(out.square().sum()));  // reads the parameters
    EXPECT_TRUE(got(optimizer.step(pass)).applied);
    EXPECT_TRUE(got(optimizer.step(layers.pass(input(1)))).applied);
    for (int i : {0, 1}) {
      layers.local_step(sgd, input(i));
    }
    layers.expect_as_local();
  }

  auto optimizer = optimizer_of(SGDOptions(0.1));
  // The backward reaches none of the parameters. The trainer then has no gradient for a round.
  dist_autograd::Pass elsewhere{agents[2]};
  at::Tensor own = at::ones({2}).requires_grad_();
  got(elsewhere.backward(own.sum()));
  EXPECT_FALSE(got(optimizer.step(elsewhere)).applied);
  EXPECT_FALSE(got(optimizer.step(std::span<const dist_autograd::Pass>{})).applied);
  layers.expect_as_local();
}

TEST_P(DistStep, APassWithoutABackwardMakesTheStepFailAndAllPassesStayOpen) {
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  auto optimizer = optimizer_of(SGDOptions(0.1));
  for (const bool first : {true, false}) {  // which of the two passes has a backward
    std::vector<dist_autograd::Pass> passes;
    passes.push_back(layers.pass(input(0)));
    passes.emplace_back(agents[2]);
    const at::Tensor hidden = got(layers.a.call<&Layer::forward>(passes[1], input(1)));
    const at::Tensor out = got(layers.b.call<&Layer::forward>(passes[1], hidden));
    const std::size_t without = first ? 1 : 0;
    if (!first) std::swap(passes[0], passes[1]);
    refusal(
        rpc::ErrorKind::failed_precondition, [&] { got(optimizer.step(passes)); },
        to_string(passes[without].id()) + " has no gradient");
    layers.expect_as_local();
    got(passes[without].backward(out.square().sum()));
    EXPECT_TRUE(got(optimizer.step(passes)).applied);
    sgd.zero_grad();
    for (int i : {0, 1}) layers.local_backward(input(i));
    sgd.step();
    layers.expect_as_local();
  }
}

// A layer that starts a backward of the pass in which it is called.
struct BeginsBackward : Layer {
  using Layer::Layer;
  rpc::Future<void> begin(rpc::CallContext& call, at::Tensor x) {
    return dist_autograd::Pass::of(call).backward(forward(std::move(x)).square().sum());
  }
  using Service =
      rpc::Service<"test.step_begins_backward", rpc::Constructor<std::int64_t>,
                   rpc::Method<"begin", &BeginsBackward::begin>, rpc::Method<"values", &Layer::values>>;
};

// The trainer does not take part in that backward.
TEST(DistStepOwners, APassMayStepAfterABackwardOfAnotherWorker) {
  Agents agents(2);
  agents[0].allow_create<BeginsBackward>();
  const auto layer = rref::create<BeginsBackward>(agents.peer(1, 0), std::int64_t{1});
  DistributedOptimizer optimizer{agents[1], SGDOptions(0.1), synchronous, layer};
  Layer local{1};
  torch::optim::SGD sgd(local.parameters(), SGDOptions(0.1));
  std::vector<dist_autograd::Pass> passes;
  for (int i : {0, 1}) {
    passes.emplace_back(agents[1]);
    got(layer.call<&BeginsBackward::begin>(passes.back(), input(i)));
    EXPECT_FALSE(passes.back().state()->had_backward());
    local.forward(input(i)).square().sum().backward();
  }
  EXPECT_TRUE(got(optimizer.step(passes)).applied);
  sgd.step();
  expect_equal(got(layer.call<&BeginsBackward::values>()), local.values());
}

TEST_P(DistStep, AReleasedPassIsRefused) {
  auto optimizer = optimizer_of(SGDOptions(0.1));
  auto pass = layers.pass(input(0));
  pass.release();
  refusal(rpc::ErrorKind::failed_precondition, [&] { got(optimizer.step(pass)); });
  layers.expect_as_local();
}

TEST_P(DistStep, IfOneOwnerRefusesNoOwnerSteps) {
  auto table = rref::create<Table>(agents.peer(2, GetParam()), std::int64_t{5});
  DistributedOptimizer optimizer{agents[2], torch::optim::AdamOptions(0.1), synchronous, layers.a, table};
  const auto backward = [&] {
    dist_autograd::Pass pass{agents[2]};
    const at::Tensor rows = got(table.call<&Table::look_up>(pass, at::arange(3)));
    got(pass.backward(got(layers.a.call<&Layer::forward>(pass, rows)).sum()));
    return pass;
  };
  for (int i = 0; i < 2; ++i) {
    const StepError error = step_error(optimizer.step(backward()));
    EXPECT_EQ(error.kind(), rpc::ErrorKind::invalid_argument)
        << error.what();  // Adam refuses sparse gradients
    for (const std::string& words :
         {"module 1 on worker" + std::to_string(GetParam()), std::string("does not support")})
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(error.stepped(), Objects{});
    EXPECT_EQ(error.not_stepped(), (Objects{0, 1}));
    expect_equal(got(layers.a.call<&Layer::values>()), layers.local_a.values());
  }
}

TEST_P(DistStep, StateMovesToOtherOwners) {
  const torch::optim::AdamOptions options(1e-2);
  torch::optim::Adam adam(layers.local_parameters(), options);
  DistributedOptimizerState state;
  const auto train = [&](TwoLayers& on, DistributedOptimizer& optimizer, int from, int to) {
    for (int i = from; i < to; ++i) {
      got(optimizer.step(on.pass(input(i))));
      layers.local_step(adam, input(i));
    }
  };
  {
    auto optimizer = optimizer_of(options);
    train(layers, optimizer, 0, 3);
    got(optimizer.set_learning_rate(1e-3));
    state = got(optimizer.save_state());
  }
  static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options()).lr(1e-3);
  // The same modules on other owners, with the current parameters.
  auto a = std::make_shared<Layer>(1), b = std::make_shared<Layer>(2);
  {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) {
      a->parameters()[i].copy_(layers.local_a.parameters()[i]);
      b->parameters()[i].copy_(layers.local_b.parameters()[i]);
    }
  }
  TwoLayers moved(agents, 1 - GetParam());
  moved.a = rref::local(agents[2], a);
  moved.b = rref::local(agents[2], b);
  DistributedOptimizer optimizer{agents[2], options, synchronous, moved.a, moved.b};
  got(optimizer.load_state(state));
  train(moved, optimizer, 3, 6);
  expect_equal(a->values(), layers.local_a.values());
  expect_equal(b->values(), layers.local_b.values());

  state.modules[0].tensors["linear.weight/exp_avg"] = at::zeros({2}, at::kDouble);
  refusal([&] { got(optimizer.load_state(state)); });
}

TEST_P(DistStep, OptionsByModuleAndByPrefix) {
  const auto first =
      OptimizerSpec(SGDOptions(0.1).momentum(0.9)).with_group("linear.bias", {{"lr", 0.01}, {"momentum", 0}});
  DistributedOptimizer optimizer{
      agents[2], synchronous, {{layers.a.reference(), first}, {layers.b.reference(), SGDOptions(0.2)}}};
  torch::optim::SGD weight(std::vector<at::Tensor>{layers.local_a.linear->weight},
                           SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD bias(std::vector<at::Tensor>{layers.local_a.linear->bias}, SGDOptions(0.01));
  torch::optim::SGD other(layers.local_b.parameters(), SGDOptions(0.2));
  for (int i = 0; i < 4; ++i) {
    if (i == 2) {
      got(optimizer.set_learning_rate(0.5, ""));  // not of the group
      static_cast<SGDOptions&>(weight.param_groups()[0].options()).lr(0.5);
      static_cast<SGDOptions&>(other.param_groups()[0].options()).lr(0.5);
    }
    got(optimizer.step(layers.pass(input(i))));
    for (auto* one : {&weight, &bias, &other}) one->zero_grad();
    layers.local_backward(input(i));
    for (auto* one : {&weight, &bias, &other}) one->step();
    layers.expect_as_local();
  }
  const auto state = got(optimizer.save_state());
  EXPECT_EQ(state.modules[0].learning_rates,
            (std::map<std::string, double>{{"", 0.5}, {"linear.bias", 0.01}}));
  got(optimizer.load_state(state));
}

// LibTorch's schedulers, with a local optimizer that represents the distributed one.
TEST_P(DistStep, LibTorchsSchedulersSetTheRate) {
  auto optimizer = optimizer_of(SGDOptions(0.1));
  torch::optim::SGD sgd(layers.local_parameters(), SGDOptions(0.1));
  torch::optim::SGD holder(std::vector<at::Tensor>{at::zeros({1})}, SGDOptions(0.1));
  torch::optim::StepLR by_step(holder, 2, 0.5), local_by_step(sgd, 2, 0.5);
  torch::optim::ReduceLROnPlateauScheduler plateau(holder, torch::optim::ReduceLROnPlateauScheduler::min,
                                                   0.1F, 0);
  torch::optim::ReduceLROnPlateauScheduler local_plateau(sgd, torch::optim::ReduceLROnPlateauScheduler::min,
                                                         0.1F, 0);
  for (int i = 0; i < 6; ++i) {
    auto set = optimizer.set_learning_rate(holder.param_groups()[0].options().get_lr());
    got(optimizer.step(layers.pass(input(i))));
    got(std::move(set));
    layers.local_step(sgd, input(i));
    layers.expect_as_local();
    by_step.step();
    local_by_step.step();
    plateau.step(1.0F);  // never better after the first
    local_plateau.step(1.0F);
  }
  EXPECT_LT(holder.param_groups()[0].options().get_lr(), 1e-5);
}

// A layer that can delay the calls in its queue.
struct GatedLayer : Layer {
  using Layer::Layer;
  test::Event held, opened;
  void hold() {
    held.set();
    opened.wait();
  }
  using Service =
      rpc::Service<"test.step_gated_layer", rpc::Method<"forward", &GatedLayer::forward>,
                   rpc::Method<"values", &GatedLayer::values>, rpc::Method<"hold", &GatedLayer::hold>>;
};

// One object has handled its part of the step and the other one has not. The step is therefore not decided
// yet.
TEST(DistStepOwners, ARateWaitsForTheStepsBeforeIt) {
  Agents agents(1);
  const auto a = std::make_shared<Layer>(1);
  const auto b = std::make_shared<GatedLayer>(2);
  const auto first = rref::local(agents[0], a);
  const auto second = rref::local(agents[0], b);
  DistributedOptimizer optimizer{agents[0], SGDOptions(0.1), bounded_staleness(1), first, second};
  dist_autograd::Pass pass{agents[0]};
  const at::Tensor hidden = got(first.call<&Layer::forward>(pass, input(0)));
  got(pass.backward(got(second.call<&GatedLayer::forward>(pass, hidden)).square().sum()));
  auto gate = second.call<&GatedLayer::hold>();
  b->held.wait();
  auto step = optimizer.step(pass);
  auto rate = optimizer.set_learning_rate(0.01);
  auto state = optimizer.save_state();
  got(first.call<&Layer::values>());  // the first object has handled all its earlier calls
  EXPECT_FALSE(step.ready());
  b->opened.set();
  got(std::move(gate));
  got(std::move(step));
  got(std::move(rate));
  EXPECT_EQ(got(std::move(state)).modules.at(0).learning_rates.at(""), 0.01);

  Layer local_a{1}, local_b{2};
  local_b.forward(local_a.forward(input(0))).square().sum().backward();
  for (Layer* layer : {&local_a, &local_b}) torch::optim::SGD(layer->parameters(), 0.1).step();
  expect_equal(a->values(), local_a.values());
  expect_equal(b->values(), local_b.values());
}

TEST(DistStepOwners, ARateWaitsForTheRoundOfTheStepBeforeIt) {
  Agents agents(4);
  const auto ours = rref::create<Layer>(agents.peer(2, 0), rref::Named{"shared"}, std::int64_t{1});
  const auto theirs = rref::create<Layer>(agents.peer(3, 0), rref::Named{"shared"}, std::int64_t{1});
  DistributedOptimizer optimizer{agents[2], SGDOptions(0.1), synchronous(2), ours};
  DistributedOptimizer other{agents[3], SGDOptions(0.1), synchronous(2), theirs};
  const auto backward = [&](rpc::Agent& trainer, const rref::RRef<Layer>& layer) {
    dist_autograd::Pass pass{trainer};
    got(pass.backward(got(layer.call<&Layer::forward>(pass, input(0))).square().sum()));
    return pass;
  };
  const auto pass = backward(agents[2], ours), their_pass = backward(agents[3], theirs);
  auto step = optimizer.step(pass);
  auto rate = optimizer.set_learning_rate(0.01);
  EXPECT_EQ(got(optimizer.stats()).at(0).version, 0U);  // replies without waiting for the round
  EXPECT_FALSE(rate.ready());
  got(other.step(their_pass));
  got(std::move(step));
  got(std::move(rate));
  Layer local{1};
  for (int trainer = 0; trainer < 2; ++trainer) local.forward(input(0)).square().sum().backward();
  torch::optim::SGD(local.parameters(), 0.1).step();
  expect_equal(got(ours.call<&Layer::values>()), local.values());
}

TEST(DistStepOwners, StatsShowTheStaleness) {
  Agents agents(3);
  TwoLayers layers(agents, 1);
  DistributedOptimizer optimizer{agents[2], SGDOptions(0.1), bounded_staleness(2), layers.a, layers.b};
  const auto early = layers.pass(input(0)), late = layers.pass(input(1));
  got(optimizer.step(early));
  got(optimizer.step(late));  // read before the first step
  const auto stats = got(optimizer.stats());
  ASSERT_EQ(stats.size(), 2U);
  for (const OwnerStats& one : stats) {
    EXPECT_EQ(one.version, 2U);
    EXPECT_EQ(one.staleness, (std::map<std::uint64_t, std::uint64_t>{{0, 1}, {1, 1}}));
    EXPECT_EQ(one.max_staleness(), 1U);
    EXPECT_EQ(one.mean_staleness(), 0.5);
    EXPECT_EQ(one.open_passes, 0U);
  }
}

// A second trainer is attached to the second object only. There the round waits for it. On the first object
// the round does not.
class DistStepDeath : public testing::Test {
 protected:
  Agents agents{4};
  TwoLayers layers{agents, 1};
  rref::RRef<Layer> shared = rref::create<Layer>(agents.peer(2, 1), rref::Named{"shared"}, std::int64_t{2});
  rref::RRef<Layer> theirs = rref::create<Layer>(agents.peer(3, 1), rref::Named{"shared"}, std::int64_t{2});
  std::unique_ptr<DistributedOptimizer> ours_optimizer, their_optimizer;
  std::optional<dist_autograd::Pass> pass;  // lives as long as its step
  std::optional<rpc::Future<StepResult>> step;

  // One object has stepped, the other one waits for its round.
  void begin() {
    layers.b = shared;
    ours_optimizer =
        std::make_unique<DistributedOptimizer>(agents[2], SGDOptions(0.1), synchronous, layers.a, layers.b);
    their_optimizer = std::make_unique<DistributedOptimizer>(agents[3], SGDOptions(0.1), synchronous, theirs);
    got(ours_optimizer->attached());
    got(their_optimizer->attached());
    pass = layers.pass(input(0));
    step = ours_optimizer->step(*pass);
    test::eventually("the first object has stepped",
                     [&] { return got(ours_optimizer->stats()).at(0).version == 1; });
    EXPECT_FALSE(step->ready());
  }
};

TEST_F(DistStepDeath, AnOwnerThatDiesDuringTheStepIsNamed) {
  begin();
  agents.kill(1);
  const StepError error = step_error(std::move(*step));
  EXPECT_EQ(error.stepped(), Objects{0}) << error.what();
  EXPECT_EQ(error.unknown().size() + error.not_stepped().size(), 1U) << error.what();
  EXPECT_NE(std::string(error.what()).find("module 0 on worker0"), std::string::npos) << error.what();
  torch::optim::SGD sgd(layers.local_a.parameters(), SGDOptions(0.1));
  layers.local_backward(input(0));
  sgd.step();
  expect_equal(got(layers.a.call<&Layer::values>()), layers.local_a.values());
}

// The call of the step owns the object, and the object's round the call.
TEST_F(DistStepDeath, AnOwnerThatEndsReleasesTheStepsThatWaitThere) {
  begin();
  const std::weak_ptr<rpc::AgentCore> owner = agents[1].core();
  agents.destroy(1);
  EXPECT_TRUE(owner.expired());
  EXPECT_EQ(step_error(std::move(*step)).stepped(), Objects{0});
}

TEST_F(DistStepDeath, ATrainerThatDiesFailsItsRoundAndTheErrorStatesWhere) {
  begin();
  agents.kill(3);
  const StepError error = step_error(std::move(*step));
  EXPECT_EQ(error.kind(), rpc::ErrorKind::aborted) << error.what();
  EXPECT_EQ(error.stepped(), Objects{0}) << error.what();
  EXPECT_EQ(error.not_stepped(), Objects{1}) << error.what();
  EXPECT_NE(std::string(error.what()).find("trainer worker3 died"), std::string::npos) << error.what();
  expect_equal(got(shared.call<&Layer::values>()), layers.local_b.values());
}

TEST(DistStepOwners, APassThatHasLostAWorkerNamesItInTheStep) {
  Agents agents(3);
  auto remote = rref::create<Layer>(agents.peer(2, 1), std::int64_t{1});
  DistributedOptimizer optimizer{agents[2], SGDOptions(0.1), bounded_staleness(0), remote};
  got(optimizer.attached());
  dist_autograd::Pass pass{agents[2]};
  got(pass.backward(got(remote.call<&Layer::forward>(pass, input(0))).sum()));
  agents.kill(1);
  const auto autograd = dist_autograd::AutogradLayer::of(*agents[2].core());
  test::eventually("the pass has failed", [&] { return autograd->find_if_known(pass.id()) == nullptr; });
  refusal(rpc::ErrorKind::peer_lost, [&] { got(optimizer.step(pass)); }, "worker1");
}

// The trainer's own module waits for another trainer's pass, and so does its prepare. Meanwhile the other
// owner dies after its prepare.
TEST(DistStepOwners, IfAnOwnerDiesBeforeTheDecisionNoObjectSteps) {
  Agents agents(3);
  auto remote = rref::create<Layer>(agents.peer(2, 1), std::int64_t{1});
  const auto layer = std::make_shared<GatedLayer>(2);
  const auto head = rref::local(agents[2], layer);
  DistributedOptimizer optimizer{agents[2], SGDOptions(0.1), bounded_staleness(0), remote, head};
  dist_autograd::Pass pass{agents[2]};
  const at::Tensor hidden = got(remote.call<&Layer::forward>(pass, input(1)));
  got(pass.backward(got(head.call<&GatedLayer::forward>(pass, hidden)).sum()));
  auto gate = head.call<&GatedLayer::hold>();
  layer->held.wait();
  auto step = optimizer.step(pass);
  got(remote.call<&Layer::values>());  // its object has prepared, and the head has not
  EXPECT_FALSE(step.ready());
  agents.kill(1);
  const auto autograd = dist_autograd::AutogradLayer::of(*agents[2].core());
  test::eventually("the pass has failed", [&] { return autograd->find_if_known(pass.id()) == nullptr; });
  layer->opened.set();
  got(std::move(gate));
  const StepError error = step_error(std::move(step));
  EXPECT_EQ(error.stepped(), Objects{}) << error.what();
  EXPECT_EQ(error.not_stepped(), (Objects{0, 1})) << error.what();
  expect_equal(got(head.call<&GatedLayer::values>()), Layer(2).values());
}

// Two trainers read two objects in opposite orders. Under bounded_staleness(0) one of them must wait for the
// other's step.
TEST_P(DistStep, PassesThatReadInOppositeOrdersDoNotWaitForEachOther) {
  Agents agents(4);
  rref::RRef<Layer> a[2], b[2];
  std::vector<std::unique_ptr<DistributedOptimizer>> optimizers;
  for (std::size_t trainer : {0, 1}) {
    const auto layer = [&](std::size_t owner, const char* name) {
      return rref::create<Layer>(agents.peer(2 + trainer, owner), rref::Named{name}, std::int64_t{1});
    };
    a[trainer] = layer(0, "a");
    b[trainer] = layer(GetParam(), "b");
    std::vector<rref::ReferencePtr> modules{a[trainer].reference(), b[trainer].reference()};
    if (trainer == 1) std::swap(modules[0], modules[1]);
    optimizers.push_back(std::make_unique<DistributedOptimizer>(agents[2 + trainer], SGDOptions(0.1),
                                                                bounded_staleness(0), modules));
    got(optimizers.back()->attached());
  }
  dist_autograd::Pass first{agents[2]}, second{agents[3]};
  const at::Tensor x = got(a[0].call<&Layer::forward>(first, input(0)));
  auto y = b[1].call<&Layer::forward>(second, input(1));
  test::eventually("the second pass waits, unless it was admitted", [&] {
    const auto stats = got(optimizers[0]->stats());
    return y.ready() || stats[0].waiting_passes + stats[1].waiting_passes != 0;
  });
  ASSERT_FALSE(y.ready()) << "the first trainer has both";
  const at::Tensor z = got(b[0].call<&Layer::forward>(first, x));
  got(first.backward(z.sum()));
  got(optimizers[0]->step(first));
  const at::Tensor out = got(a[1].call<&Layer::forward>(second, got(std::move(y))));
  got(second.backward(out.sum()));
  EXPECT_EQ(got(optimizers[1]->step(second)).versions, (std::vector<std::uint64_t>{2, 2}));

  // A pass that reads only one of the objects, and a pass that ends without a step, delay no other pass.
  {
    dist_autograd::Pass only{agents[2]}, none{agents[2]};
    got(only.backward(got(a[0].call<&Layer::forward>(only, input(2))).sum()));
    got(optimizers[0]->step(only));
    got(a[0].call<&Layer::forward>(none, input(2)));
  }
  dist_autograd::Pass last{agents[3]};
  got(last.backward(got(b[1].call<&Layer::forward>(last, input(3))).sum()));
  got(optimizers[1]->step(last));
}

// The order in which a pass is admitted to the objects of a handle is the same for all passes: it does not
// depend on which object a pass reads first.
TEST(DistStepOwners, APassThatWaitsForAnObjectIsNotAdmittedToLaterObjects) {
  Agents agents(3);
  const auto layer = [&](std::size_t trainer, const char* name) {
    return rref::create<Layer>(agents.peer(trainer, 0), rref::Named{name}, std::int64_t{1});
  };
  const rref::RRef<Layer> its_a = layer(1, "a"), a = layer(2, "a"), b = layer(2, "b");
  DistributedOptimizer of_a{agents[1], SGDOptions(0.1), bounded_staleness(0), its_a};
  got(of_a.attached());
  DistributedOptimizer of_both{agents[2], SGDOptions(0.1), bounded_staleness(0), a, b};
  got(of_both.attached());

  dist_autograd::Pass first{agents[1]}, second{agents[2]};
  const at::Tensor x = got(its_a.call<&Layer::forward>(first, input(0)));
  auto y = a.call<&Layer::forward>(second, input(1));
  std::vector<OwnerStats> stats;
  test::eventually("the second pass waits for the first one's step", [&] {
    stats = got(of_both.stats());
    return stats[0].waiting_passes == 1;
  });
  EXPECT_EQ(stats[1].open_passes, 0U);
  got(first.backward(x.sum()));
  got(of_a.step(first));
  got(second.backward(got(std::move(y)).sum()));
  got(of_both.step(second));
}

TEST_P(DistStep, TheNumberOfTrainersIsSetBetweenRounds) {
  auto optimizer = optimizer_of(SGDOptions(0.1), synchronous(2));
  got(optimizer.set_mode(synchronous(1)));
  EXPECT_TRUE(got(optimizer.step(layers.pass(input(0)))).applied);
  auto again = optimizer_of(SGDOptions(0.1), synchronous(1));
  got(again.attached());
}

// The program destroys the handle and the RRef before the owner has replied to one of the handle's calls.
TEST(DistStepOwners, AnAgentThatLeavesReleasesTheObjectsOfItsOptimizers) {
  for (const std::string method : {"attach", "detach"}) {
    SCOPED_TRACE(method);
    const auto calls = std::make_shared<test::HeldCalls>("weft.optim." + method);
    test::Cluster cluster{{layers(), false,
                           [&](rpc::AgentOptions& options) {
                             if (options.name == "owner") options.interceptors.push_back(calls);
                           }},
                          {"owner", "trainer"}};
    cluster["owner"].allow_create<Layer>();
    {
      const auto layer = rref::create<Layer>(cluster.peer("trainer", "owner"), std::int64_t{1});
      DistributedOptimizer optimizer{cluster["trainer"], SGDOptions(0.1), synchronous, layer};
      if (method == "detach") got(optimizer.attached());
    }
    calls->wait();
    auto layers_left = cluster["trainer"].core()->hooks().leave(cluster["trainer"].core()->pick_loop());
    EXPECT_FALSE(layers_left.ready()) << "the owner holds the object for the call";
    auto left = cluster["trainer"].leave();
    calls->release();
    got(std::move(layers_left));
    got(std::move(left));
    cluster.end_all();
    EXPECT_TRUE(cluster.logged("leak").empty());
  }
}

}  // namespace
}  // namespace weft::dist_optim::dist_step_test
