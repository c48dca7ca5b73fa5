#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/error.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/types.h>

namespace weft::dist_optim::local_step_options_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Action = StepDecision::Action;

TEST(StepOptions, RefuseInvalidValues) {
  for (const StepOptions& options : std::vector<StepOptions>{{.loss_scale = 0},
                                                             {.loss_scale = infinity},
                                                             {.clip_value = -1},
                                                             {.clip_norm = -1},
                                                             {.clip_value = 1, .clip_norm = 1},
                                                             {.norm_type = 0},
                                                             {.clip_norm = std::nan("")}})
    EXPECT_THROW(options.check(), rpc::Error);
  StepOptions{.loss_scale = 2, .clip_norm = 1, .norm_type = infinity}.check();
}

TEST(StepOptions, NormsCombineAsOneNormOverAll) {
  EXPECT_DOUBLE_EQ(combine_norms({3, 4}, 2), 5);
  EXPECT_DOUBLE_EQ(combine_norms({3, 4}, 1), 7);
  EXPECT_DOUBLE_EQ(combine_norms({3, 4}, infinity), 4);
  EXPECT_DOUBLE_EQ(combine_norms({3e200, 4e200}, 2), 5e200);  // the squares exceed a double
  EXPECT_EQ(combine_norms({}, 2), 0);
  EXPECT_EQ(combine_norms({0, 0}, 2), 0);
  EXPECT_EQ(combine_norms({1, infinity}, 2), infinity);
  EXPECT_TRUE(std::isnan(combine_norms({1, std::nan(""), infinity}, 2)));
}

TEST(StepOptions, TheDecisionFollowsFromAllParts) {
  // without a loss scale, infinite gradients are not checked
  EXPECT_EQ(decide({{true, 1}}, {}).action, Action::apply);
  EXPECT_EQ(decide({{false, 1}, {true, 1}}, {.loss_scale = 2}).action, Action::skip);
  const StepDecision clipped = decide({{false, 3}, {false, 4}}, {.clip_norm = 2});
  EXPECT_EQ(clipped.action, Action::apply);
  EXPECT_DOUBLE_EQ(clipped.scale, 2 / (5 + 1e-6));
  EXPECT_DOUBLE_EQ(clipped.total_norm, 5);
  EXPECT_EQ(decide({{false, 3}}, {.clip_norm = 20}).scale, 1);
  EXPECT_EQ(decide({{false, infinity}}, {.clip_norm = 1}).scale, 0);
  EXPECT_EQ(decide({{false, infinity}}, {.clip_norm = 1, .error_if_nonfinite = true}).action,
            Action::give_up);
}

TEST(StepOptions, APassWhoseBackwardIsUnknownNeedsAGradient) {
  const StepPart none{.none = true}, first{.found = {0}}, second{.found = {1}};
  EXPECT_EQ(decide({none, none}, {}).action, Action::skip);
  EXPECT_EQ(decide({none, none}, {}, 1).action, Action::give_up);
  EXPECT_EQ(decide({first, second}, {}, 2).action, Action::apply);
  const StepDecision decision = decide({first, none}, {}, 2);
  EXPECT_EQ(decision.action, Action::give_up);
  EXPECT_EQ(decision.missing, std::vector<std::uint32_t>{1});
}

TEST(StepOptions, SparseGradientsCountAnIndexOnce) {
  // Row 1 occurs twice: 3 and 4 have the sum 7.
  const at::Tensor sparse =
      torch::sparse_coo_tensor(at::tensor({1, 1, 2}, at::kLong).unsqueeze(0),
                               at::tensor({3.0, 4.0, -5.0}, at::kDouble).unsqueeze(1), {4, 1});
  Gradients gradients{{0, sparse}, {1, at::tensor({2.0}, at::kDouble)}, {2, at::Tensor()}};
  EXPECT_NEAR(measure(gradients, {.clip_norm = 1}).norm, std::sqrt(49 + 25 + 4), 1e-12);
  Gradients treated = gradients;
  prepare_gradients(treated, 2, {.mean = true, .clip_value = 3});
  EXPECT_TRUE(torch::equal(treated[0].to_dense().flatten(), at::tensor({0.0, 3.0, -2.5, 0.0}, at::kDouble)));
  EXPECT_TRUE(torch::equal(treated[1], at::tensor({1.0}, at::kDouble)));
  // the gradients of the passes do not change
  EXPECT_TRUE(torch::equal(gradients[0].to_dense(), sparse.to_dense()));
  scale_gradients(treated, 0.5);
  EXPECT_TRUE(torch::equal(treated[0].to_dense().flatten(), at::tensor({0.0, 1.5, -1.25, 0.0}, at::kDouble)));
}

}  // namespace
}  // namespace weft::dist_optim::local_step_options_test
