// GradScaler, compared with the rule of torch.amp.GradScaler (its documentation, and _amp_update_scale_).
#include <weft/dist_optim/grad_scaler.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace weft::dist_optim::grad_scaler_test {
namespace {

TEST(GradScaler, HasPytorchsDefaults) {
  GradScaler scaler;
  EXPECT_EQ(scaler.factor(), 65536);
  for (int i = 0; i < 1999; ++i) scaler.update(true);
  EXPECT_EQ(scaler.factor(), 65536);
  scaler.update(true);
  EXPECT_EQ(scaler.factor(), 131072);
  scaler.update(false);
  EXPECT_EQ(scaler.factor(), 65536);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST(GradScaler, GrowsOnlyAfterConsecutiveSteps) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  for (bool applied : {true, true, false, true, true, true, true}) scaler.update(applied);
  EXPECT_EQ(scaler.factor(), 8 * 0.25 * 4);
  EXPECT_EQ(scaler.state().growth_tracker, 1);
  EXPECT_EQ(scaler.scale(at::full({}, 2.0)).item<double>(), 16);
}

TEST(GradScaler, NeverGrowsBeyondAFloat) {
  GradScaler scaler({.init_scale = 2e38, .growth_interval = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.factor(), 2e38);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST(GradScaler, ItsStateIsSavedAndRestored) {
  GradScaler one({.growth_interval = 2}), other({.growth_interval = 2});
  one.update(false);
  one.update(true);
  other.set_state(one.state());
  other.update(true);
  EXPECT_EQ(other.factor(), 65536);
  EXPECT_THROW(other.set_state({0, 0}), rpc::Error);
  EXPECT_THROW(other.set_state({1, -1}), rpc::Error);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), rpc::Error);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), rpc::Error);
  EXPECT_THROW(GradScaler({.growth_interval = 0}), rpc::Error);
}

}  // namespace
}  // namespace weft::dist_optim::grad_scaler_test
