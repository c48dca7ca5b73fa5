// A program that uses schedules, from a name to a picture.
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/liveness.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>

#include <gtest/gtest.h>

namespace weft::schedule::testing {
namespace first_program_test {

TEST(FirstProgram, PlansAPipelineAndPredictsItsTime) {
  const Schedule computations = zb_v({.ranks = 4, .microbatches = 8});
  const Schedule plan = place_communication(computations);
  validate(plan);
  prove_message_order(plan);

  const Prediction prediction = predict(plan, Costs{});
  EXPECT_EQ(prediction.bubble, 0.0);
  EXPECT_LE(prediction.peak_activations[0], 2 * 4);
  EXPECT_GT(liveness(plan).ranks[0].slots(Held::activation), 0);

  EXPECT_EQ(load(save(plan)), plan);
  EXPECT_NE(svg(plan, {{"predicted", prediction.timeline}}).find("</svg>"), std::string::npos);
  EXPECT_EQ(save(one_forward_one_backward({.ranks = 2, .microbatches = 2})),
            "0F0,0F1,0B0,0B1\n"
            "1F0,1B0,1F1,1B1\n");
}

}  // namespace first_program_test
}  // namespace weft::schedule::testing
