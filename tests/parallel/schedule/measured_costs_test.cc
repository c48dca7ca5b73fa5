#include <weft/parallel/schedule/measured_costs.h>

#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

namespace weft::schedule::measured_costs_test {
namespace {

TEST(MeasuredCosts, EqualTheCostsOfTheTimeline) {
  Costs costs{.stages = {}};
  for (int stage = 0; stage < 4; ++stage)
    costs.stages.push_back({.forward = 1.0 + stage,
                            .input_gradient = 2.0 + stage,
                            .weight_gradient = 0.5 + stage,
                            .recompute = 3.0 + stage});
  const Schedule schedule = add_recomputation(zb_v({.ranks = 2, .microbatches = 4}), Recompute::always);
  const Timeline timeline = predict(schedule, costs).timeline;
  const Costs measured = measured_costs(schedule, {&timeline, 1});
  ASSERT_EQ(measured.stages.size(), 4U);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(measured.stages[stage].forward, costs.stages[stage].forward, 1e-9);
    EXPECT_NEAR(measured.stages[stage].input_gradient, costs.stages[stage].input_gradient, 1e-9);
    EXPECT_NEAR(measured.stages[stage].weight_gradient, costs.stages[stage].weight_gradient, 1e-9);
    EXPECT_NEAR(measured.stages[stage].recompute, costs.stages[stage].recompute, 1e-9);
  }
}

TEST(MeasuredCosts, AStepIsReplayedWithoutItsWaits) {
  const Schedule schedule = one_forward_one_backward({.ranks = 2, .microbatches = 3});
  const Costs costs{.stages = {{.forward = 1}, {.forward = 2}}};
  const Prediction predicted = predict(schedule, costs);
  EXPECT_NEAR(replayed_time(schedule, predicted.timeline), predicted.time, 1e-9);
  Timeline late = predicted.timeline;  // each action a second later than the one before
  for (auto& spans : late.ranks)
    for (std::size_t i = 0; i < spans.size(); ++i)
      spans[i].start += static_cast<double>(i), spans[i].finish += static_cast<double>(i);
  EXPECT_NEAR(replayed_time(schedule, late), predicted.time, 1e-9);
  late.ranks[1].back().finish += 5;  // one that takes longer
  EXPECT_NEAR(replayed_time(schedule, late), predicted.time + 5, 1e-9);
}

TEST(MeasuredCosts, AreMediansOverStepsWithBackwardsInHalves) {
  const Schedule schedule = fill_drain({.ranks = 1, .microbatches = 1});
  const std::vector<Timeline> steps{{.ranks = {{{0, 0, 1}, {1, 1, 5}}}, .transfers = {}},
                                    {.ranks = {{{0, 0, 2}, {1, 2, 8}}}, .transfers = {}},
                                    {.ranks = {{{0, 0, 9}, {1, 9, 10}}}, .transfers = {}}};
  const Costs measured = measured_costs(schedule, steps);
  EXPECT_EQ(measured.stages.at(0).forward, 2);
  EXPECT_EQ(measured.stages.at(0).input_gradient, 2);
  EXPECT_EQ(measured.stages.at(0).weight_gradient, 2);
}

TEST(MeasuredCosts, RefuseATimelineOfAnotherSchedule) {
  const Schedule schedule = fill_drain({.ranks = 2, .microbatches = 1});
  const Timeline one{.ranks = {{}}, .transfers = {}}, late{.ranks = {{{9, 0, 1}}, {}}, .transfers = {}};
  EXPECT_THROW(measured_costs(schedule, {&one, 1}), rpc::Error);
  EXPECT_THROW(measured_costs(schedule, {&late, 1}), rpc::Error);
}

}  // namespace
}  // namespace weft::schedule::measured_costs_test
