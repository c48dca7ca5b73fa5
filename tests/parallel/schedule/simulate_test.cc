#include <weft/parallel/schedule/simulate.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::schedule::testing {
namespace simulate_test {

std::vector<double> starts(const Prediction& prediction, std::size_t rank) {
  std::vector<double> times;
  for (const Span& span : prediction.timeline.ranks[rank]) times.push_back(span.start);
  return times;
}

TEST(Simulate, EachActionStartsWhenItsInputsAndItsRankAreReady) {
  const Prediction prediction = predict(load("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  EXPECT_EQ(starts(prediction, 0), (std::vector<double>{0, 1, 4, 7}));
  EXPECT_EQ(starts(prediction, 1), (std::vector<double>{1, 2, 4, 5}));
  EXPECT_EQ(prediction.time, 9);
  EXPECT_EQ(prediction.busy, (std::vector<double>{6, 6}));
}

TEST(Simulate, StagesHaveTheirOwnCosts) {
  const Costs costs{.stages = {{.forward = 2, .input_gradient = 3, .weight_gradient = 4}, {.forward = 10}}};
  const Prediction prediction = predict(load("0F0,0B0\n1F0,1I0,1W0\n"), costs);
  EXPECT_EQ(starts(prediction, 0), (std::vector<double>{0, 13}));
  EXPECT_EQ(starts(prediction, 1), (std::vector<double>{2, 12, 13}));
  EXPECT_EQ(prediction.time, 20);
  EXPECT_THROW(predict(load("0F0\n1F0\n2F0\n"), costs), rpc::Error);
}

// The same with and without sends and receives: a transfer does not occupy the ranks.
TEST(Simulate, MessagesTakeTheTimeOfTheirLink) {
  const Costs costs{.link = 0.5, .links = {{{1, 0}, 2}}};
  const Schedule schedule = load("0F0,0B0\n1F0,1B0\n");
  for (const Schedule& each : {schedule, place_communication(schedule)}) {
    const Prediction prediction = predict(each, costs);
    EXPECT_EQ(prediction.time, 1 + 0.5 + 3 + 2 + 2);
    ASSERT_EQ(prediction.timeline.transfers.size(), 2u);
    const Transfer& gradient = prediction.timeline.transfers[1];
    EXPECT_EQ(to_string(gradient.send), "1SEND_B0");
    EXPECT_EQ(gradient.from, 1);
    EXPECT_EQ(gradient.to, 0);
    EXPECT_EQ(gradient.start, 4.5);
    EXPECT_EQ(gradient.finish, 6.5);
  }
}

TEST(Simulate, MessagesOfALinkFollowEachOther) {
  const Prediction prediction = predict(load("0F0,0F1,0F2\n1F0,1F1,1F2\n"), {.link = 3});
  EXPECT_EQ(starts(prediction, 1), (std::vector<double>{4, 7, 10}));
}

// A transfer starts when both sides have reached it, and a wait ends with it.
TEST(Simulate, AWaitTakesUntilTheMessageIsReceived) {
  const Prediction prediction =
      predict(load("0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"), {.link = 5});
  EXPECT_EQ(starts(prediction, 0), (std::vector<double>{0, 1, 6, 6, 7}));
  const Prediction late = predict(load("0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F0,1F0,1RECV_F1,1F1\n"),
                                  {.stages = {{.forward = 1}, {.forward = 9}}, .link = 1});
  EXPECT_EQ(late.timeline.transfers[1].start, 11);
}

TEST(Simulate, AnOverlappedPairTakesAShareOfItsParts) {
  const Schedule schedule = load("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
  EXPECT_EQ(predict(schedule).time, 12);
  EXPECT_EQ(predict(schedule, {.overlap = 0.5}).time, 10.5);
}

TEST(Simulate, AReductionStartsWithTheLastReplica) {
  const Prediction prediction = predict(load("0F0,0F2,0B0,0B2,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STEP\n"
                                             "0F1,0B1,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0STEP\n"),
                                        {.reduce_gradient = 5, .optimizer_step = 1});
  EXPECT_EQ(starts(prediction, 1), (std::vector<double>{0, 1, 3, 11, 11}));
  EXPECT_EQ(prediction.time, 12);
}

// In ZB-H2 the next step of a rank starts as soon as the rank has no more work.
TEST(Simulate, ThePeriodAssumesNoBarrierBetweenSteps) {
  const Prediction prediction = predict(zb_h2({4, 8}));
  EXPECT_EQ(prediction.time, 27);
  EXPECT_EQ(prediction.period, 24);
  EXPECT_EQ(prediction.bubble, 0);
  EXPECT_DOUBLE_EQ(prediction.bubble_with_barrier, 3.0 / 27);  // as ZB-H1
  EXPECT_DOUBLE_EQ(predict(zb_h1({4, 8})).bubble_with_barrier, 3.0 / 27);
  EXPECT_DOUBLE_EQ(predict(zb_v({4, 8})).bubble_with_barrier, 3.0 / 51);
  EXPECT_DOUBLE_EQ(predict(one_forward_one_backward({4, 8})).bubble_with_barrier, 3.0 / 11);
}

// A slow stage delays the others under every schedule.
TEST(Simulate, TheSlowestStageBoundsThePeriod) {
  const Prediction prediction = predict(one_forward_one_backward({2, 32}), {.stages = {{}, {.forward = 2}}});
  EXPECT_EQ(prediction.busy[1], 4 * 32);
  EXPECT_EQ(prediction.period, 4 * 32 + 3);
}

// --- Memory ---

std::vector<double> peaks(const Schedule& schedule, const StageCost& cost) {
  return predict(schedule, {.stages = {cost}}).peak_activations;
}

TEST(Simulate, ActivationsLiveFromTheForwardToTheBackward) {
  EXPECT_EQ(peaks(load("0F0,0F1,0B0,0F2,0B1,0B2\n"), {.activation = 10}), std::vector<double>{20});
  EXPECT_EQ(peaks(load("0F0,0F1,0F2\n"), {.activation = 10}),
            std::vector<double>{10});  // without a backward no activation is kept
}

TEST(Simulate, APartLivesUntilTheWeightGradient) {
  const Schedule schedule = load("0F0,0I0,0F1,0I1,0W0,0W1\n");
  EXPECT_EQ(peaks(schedule, {.activation = 10, .kept_for_weight_gradient = 10}), std::vector<double>{20});
  EXPECT_EQ(peaks(schedule, {.activation = 10, .kept_for_weight_gradient = 4}), std::vector<double>{14});
}

TEST(Simulate, RecomputationKeepsCheckpointsOnly) {
  const Schedule schedule = add_recomputation(fill_drain({1, 4}), Recompute::always);
  EXPECT_EQ(peaks(schedule, {.activation = 10, .checkpoint = 1}), std::vector<double>{3 + 10 + 1});
  EXPECT_EQ(predict(schedule).time, 4 * 4);
  // Without recomputation of the last micro-batch, its activations stay until its backward.
  const Schedule last = add_recomputation(fill_drain({1, 4}), Recompute::except_last);
  EXPECT_EQ(peaks(last, {.activation = 10, .checkpoint = 1}), std::vector<double>{2 + 10 + 1 + 10});
}

}  // namespace simulate_test
}  // namespace weft::schedule::testing
