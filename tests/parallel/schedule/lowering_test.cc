#include <weft/parallel/schedule/lowering.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

namespace weft::schedule::testing {
namespace lowering_test {

TEST(Lowering, RecomputationPrecedesEachBackward) {
  const Schedule schedule = load("0F0,0F1,0B0,0I1,0W1\n");
  EXPECT_EQ(save(add_recomputation(schedule, Recompute::always)),
            "0F0,0F1,0RECOMPUTE0,0B0,0RECOMPUTE1,0I1,0W1\n");
  EXPECT_EQ(save(add_recomputation(schedule, Recompute::except_last)), "0F0,0F1,0RECOMPUTE0,0B0,0I1,0W1\n");
  EXPECT_EQ(add_recomputation(schedule, Recompute::never), schedule);
}

TEST(Lowering, RecomputationUsesTheVersionOfTheBackward) {
  const Schedule schedule = add_recomputation(pipedream({2, 3}), Recompute::always);
  EXPECT_NE(save(schedule).find("0LOAD@0,0RECOMPUTE1@0,0B1@0"), std::string::npos);
  validate(schedule);
}

TEST(Lowering, AWeightGradientDirectlyBehindItsInputGradientIsAWholeBackward) {
  EXPECT_EQ(save(merge_backwards(load("0F0,0I0,0W0,0F1,0F2,0I1,0I2,0W2,0W1\n"))),
            "0F0,0B0,0F1,0F2,0I1,0B2,0W1\n");
  EXPECT_EQ(save(merge_backwards(load("0F0@0,0I0@0,0W0@1\n"))), "0F0@0,0I0@0,0W0@1\n");  // uses other weights
  for (const Generator& generator : generators())
    validate(place_communication(merge_backwards(generator.make({4, 9}))));
}

TEST(Lowering, GradientsAreReducedAfterTheLastWeightGradient) {
  const Schedule schedule = load("0F0,1F0,1B0,0I0,0W0\n");
  EXPECT_EQ(save(add_gradient_reduction(schedule)),
            "0F0,1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,0I0,0W0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n");
  EXPECT_EQ(save(add_gradient_reduction(schedule, true)),
            "0F0,1F0,1B0,1REDUCE_GRAD,0I0,0W0,1WAIT_REDUCE_GRAD,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n");
}

TEST(Lowering, ARankKeepsTheNextStagesUnsharded) {
  const Schedule schedule = load("0F0,1F0,2F0,2B0,1B0,0B0\n");
  EXPECT_EQ(save(add_unsharding(schedule, 1)),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1RESHARD,2UNSHARD,2F0,2B0,2RESHARD,1UNSHARD,1B0,1RESHARD,"
            "0UNSHARD,0B0,0RESHARD\n");
  EXPECT_EQ(
      save(add_unsharding(schedule, 2)),
      "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,2F0,2B0,2RESHARD,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  EXPECT_THROW(add_unsharding(schedule, 0), rpc::Error);
}

TEST(Lowering, APairNeedsAllItsStages) {
  const Schedule schedule = load("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
  validate(add_unsharding(schedule, 1));
}

TEST(Lowering, EachStageOfARankStepsAtItsEnd) {
  EXPECT_EQ(save(add_optimizer_steps(load("1F0,0F0\n"))), "1F0,0F0,0STEP,1STEP\n");
}

TEST(Lowering, PassesDoNotAddTheirActionsTwice) {
  const Schedule schedule = fill_drain({2, 2});
  EXPECT_THROW(add_recomputation(add_recomputation(schedule, Recompute::always), Recompute::always),
               rpc::Error);
  EXPECT_THROW(add_gradient_reduction(add_gradient_reduction(schedule)), rpc::Error);
  EXPECT_THROW(add_unsharding(add_unsharding(schedule)), rpc::Error);
  EXPECT_THROW(add_optimizer_steps(add_optimizer_steps(schedule)), rpc::Error);
}

// All passes are applied together, before and after the messages are placed.
TEST(Lowering, EveryScheduleStaysValid) {
  const auto lower = [](const Schedule& schedule) {
    const Schedule reduced =
        add_gradient_reduction(add_recomputation(schedule, Recompute::except_last), true);
    return add_unsharding(reduced, 2);
  };
  for (const Generator& generator : generators())
    for (const int m : {1, 4, 9}) {
      const Schedule schedule = generator.make({4, m});
      EXPECT_NO_THROW(prove_message_order(place_communication(lower(schedule)))) << generator.name;
      EXPECT_NO_THROW(prove_message_order(lower(place_communication(schedule)))) << generator.name;
    }
}

}  // namespace lowering_test
}  // namespace weft::schedule::testing
