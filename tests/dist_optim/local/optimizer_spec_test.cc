#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/step_mode.h>
#include <weft/rpc/core/error.h>

#include <limits>
#include <map>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_optimizer_spec_test {
namespace {

// Every option has a value other than its default. If the spec omits an option, the test fails.
template <typename Options>
void expect_round_trip(const Options& options) {
  OptimizerSpec spec = options;
  auto made = spec.make({torch::zeros({2})});
  auto* defaults = dynamic_cast<const Options*>(&made->defaults());
  ASSERT_NE(defaults, nullptr) << to_string(spec);
  EXPECT_TRUE(*defaults == options) << to_string(spec);
}

TEST(OptimizerSpec, CarriesEveryOption) {
  using namespace torch::optim;
  expect_round_trip(SGDOptions(0.3).momentum(0.9).weight_decay(0.01).nesterov(true));
  expect_round_trip(SGDOptions(0.3).momentum(0.9).dampening(0.2));
  expect_round_trip(AdamOptions(0.3).betas({0.8, 0.7}).eps(1e-3).weight_decay(0.01).amsgrad(true));
  expect_round_trip(AdamWOptions(0.3).betas({0.8, 0.7}).eps(1e-3).weight_decay(0.02).amsgrad(true));
  expect_round_trip(
      AdagradOptions(0.3).lr_decay(0.1).weight_decay(0.01).initial_accumulator_value(0.5).eps(1e-3));
  expect_round_trip(RMSpropOptions(0.3).alpha(0.8).eps(1e-3).weight_decay(0.01).momentum(0.5).centered(true));
}

// The same test for weft's own optimizers, whose options list their names.
template <typename Options>
void expect_named(Options options, std::map<std::string, double> expected) {
  const OptimizerSpec spec = options;
  EXPECT_EQ(spec.options, expected) << to_string(spec);
  const auto made = spec.make({torch::zeros({2})});
  auto* defaults = dynamic_cast<const Options*>(&made->defaults());
  ASSERT_NE(defaults, nullptr) << to_string(spec);
  EXPECT_EQ(OptimizerSpec(*defaults), spec);
}

TEST(OptimizerSpec, CarriesEveryOptionOfWeftsOwn) {
  expect_named(SparseAdamOptions(0.3).beta1(0.8).beta2(0.7).eps(1e-3),
               {{"lr", 0.3}, {"beta1", 0.8}, {"beta2", 0.7}, {"eps", 1e-3}});
  expect_named(RowwiseAdagradOptions(0.3).eps(1e-3).initial_accumulator_value(0.5),
               {{"lr", 0.3}, {"eps", 1e-3}, {"initial_accumulator_value", 0.5}});
  expect_named(AdadeltaOptions(0.3).rho(0.8).eps(1e-3).weight_decay(0.1).maximize(true),
               {{"lr", 0.3}, {"rho", 0.8}, {"eps", 1e-3}, {"weight_decay", 0.1}, {"maximize", 1}});
  expect_named(
      AdamaxOptions(0.3).beta1(0.8).beta2(0.7).eps(1e-3).weight_decay(0.1).maximize(true),
      {{"lr", 0.3}, {"beta1", 0.8}, {"beta2", 0.7}, {"eps", 1e-3}, {"weight_decay", 0.1}, {"maximize", 1}});
  expect_named(
      RpropOptions(0.3).etaminus(0.4).etaplus(1.5).step_size_min(0.1).step_size_max(2).maximize(true),
      {{"lr", 0.3},
       {"etaminus", 0.4},
       {"etaplus", 1.5},
       {"step_size_min", 0.1},
       {"step_size_max", 2},
       {"maximize", 1}});
}

TEST(OptimizerSpec, IsEqualExactlyWhereTheOptionsAre) {
  OptimizerSpec spec = torch::optim::AdamOptions(1e-3);
  EXPECT_EQ(spec, OptimizerSpec(torch::optim::AdamOptions(1e-3).amsgrad(false)));
  EXPECT_NE(spec, OptimizerSpec(torch::optim::AdamOptions(1e-3).amsgrad(true)));
  EXPECT_NE(spec, OptimizerSpec(torch::optim::AdamOptions(2e-3)));
  EXPECT_NE(OptimizerSpec(torch::optim::AdamOptions(1e-3).weight_decay(0)),
            OptimizerSpec(torch::optim::AdamWOptions(1e-3).weight_decay(0)));
}

TEST(OptimizerSpec, IsReadable) {
  EXPECT_EQ(to_string(OptimizerSpec(torch::optim::SGDOptions(0.1).momentum(0.9))),
            "SGD(dampening=0, lr=0.1, momentum=0.9, nesterov=0, weight_decay=0)");
}

TEST(OptimizerSpec, FromAPeerIsChecked) {
  const OptimizerSpec good = torch::optim::SGDOptions(0.1);
  auto make = [&](auto change) {
    OptimizerSpec spec = good;
    change(spec);
    return refusal([&] { spec.make({torch::zeros({2})}); });
  };
  EXPECT_NE(make([](auto& spec) { spec.name = "LBFGS"; }).find("LBFGS"), std::string::npos);
  EXPECT_NE(make([](auto& spec) { spec.options.erase("momentum"); }).find("momentum"), std::string::npos);
  make([](auto& spec) { spec.options["surprise"] = 1; });
  make([](auto& spec) { spec.options["nesterov"] = 0.5; });
  make([](auto& spec) { spec.options["lr"] = std::numeric_limits<double>::quiet_NaN(); });
  EXPECT_NE(make([](auto& spec) { spec.options["lr"] = -1; }).find("learning rate"), std::string::npos);
  EXPECT_FALSE((std::is_constructible_v<OptimizerSpec, torch::optim::LBFGSOptions>));
}

TEST(StepMode, IsPlainData) {
  EXPECT_EQ(StepMode(synchronous), (StepMode{StepMode::Kind::synchronous, 0}));
  EXPECT_EQ(StepMode(synchronous(2)), (StepMode{StepMode::Kind::synchronous, 2}));
  EXPECT_EQ(bounded_staleness(3), (StepMode{StepMode::Kind::bounded_staleness, 3}));
  EXPECT_NE(bounded_staleness(3), bounded_staleness(2));
  EXPECT_NE(bounded_staleness(0), dist_optim::hogwild);
  EXPECT_EQ(to_string(synchronous) + to_string(synchronous(2)) + to_string(bounded_staleness(3)) +
                to_string(dist_optim::hogwild),
            "synchronoussynchronous(2)bounded_staleness(3)hogwild");
}

TEST(StepMode, RefusesInvalidValues) {
  refusal([] { synchronous(0); });
  refusal([] { bounded_staleness(-1); });
  check(bounded_staleness(0));
  refusal([] { check(StepMode{StepMode::Kind::bounded_staleness, -1}); });
  refusal([] { check(StepMode{StepMode::Kind::hogwild, 1}); });
  refusal([] { check(StepMode{static_cast<StepMode::Kind>(9), 0}); });
}

}  // namespace
}  // namespace weft::dist_optim::local_optimizer_spec_test
