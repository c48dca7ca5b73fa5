#include <weft/parallel/schedule/text.h>

#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/validate.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/errors.h"

namespace weft::schedule::testing {
namespace text_test {

std::string error_of(std::string_view text) {
  return test::message_of([text] { return load(text, "plan.csv"); });
}

// A schedule that torch.distributed.pipelining wrote (torch_schedules.py), with line ends as weft writes
// them.
std::string from_torch(const std::string& name) {
  std::ifstream file(std::filesystem::path(WEFT_SCHEDULE_DATA) / (name + ".csv"));
  std::stringstream text;
  text << file.rdbuf();
  std::string result = text.str();
  std::erase(result, '\r');
  return result;
}

std::vector<std::vector<Action>> computations_of(const Schedule& schedule) {
  std::vector<std::vector<Action>> ranks = schedule.ranks;
  for (std::vector<Action>& actions : ranks)
    std::erase_if(actions,
                  [](const Action& each) { return !is_computation(each.op) && each.op != Op::overlap; });
  return ranks;
}

TEST(Text, AnActionHasTheTextFormOfTorch) {
  EXPECT_EQ(to_string({.op = Op::forward, .stage = 3, .microbatch = 1}), "3F1");
  EXPECT_EQ(to_string({.op = Op::reduce_gradient, .stage = 12}), "12REDUCE_GRAD");
  EXPECT_EQ(to_string(message(Op::send_activation, 2, {1, 2})), "1SEND_F2");
  EXPECT_EQ(to_string(message(Op::receive_gradient, 2, {1, 2})), "1RECV_B2");
  EXPECT_EQ(to_string({.op = Op::overlap,
                       .parts = {{.op = Op::forward, .stage = 0, .microbatch = 4},
                                 {.op = Op::backward, .stage = 7, .microbatch = 3}}}),
            "(0F4;7B3)OVERLAP_F_B");
}

TEST(Text, OtherEdgesAndVersionsExtendTheForm) {
  EXPECT_EQ(to_string(message(Op::send_activation, 2, {1, 5})), "1SEND_F2:5");
  EXPECT_EQ(to_string(message(Op::receive_activation, 2, {1, 5})), "5RECV_F2:1");
  EXPECT_EQ(to_string({.op = Op::stash, .stage = 2, .version = 4}), "2STASH@4");
  EXPECT_EQ(to_string({.op = Op::forward, .stage = 2, .microbatch = 7, .version = 4}), "2F7@4");
}

TEST(Text, EveryActionRoundTrips) {
  const std::string text =
      "0F0,0SEND_F0,0SEND_F0:2,,0WAIT_SEND_F0:2,0RECV_B0:2,0RECV_B0,0RECOMPUTE0,0I0,0W0,0REDUCE_GRAD,0WAIT_"
      "REDUCE_GRAD\n"
      "1UNSHARD,1RECV_F0,1F0@3,1SEND_F0,1RECV_B0,1B0@3,1SEND_B0,1WAIT_SEND_B0,1RESHARD,1STASH@3,1STEP@4,"
      "1LOAD@3\n"
      "2RECV_F0:0,2RECV_F0,(2F0;2B0)OVERLAP_F_B,2SEND_B0,2SEND_B0:0\n";
  EXPECT_EQ(save(load(text)), text);
}

TEST(Text, SizesFollowFromTheActions) {
  const Schedule schedule = load("0F0,0SEND_F0:2\n1F0,1F2\n1F1\n2F0,2RECV_F0:0\n");
  EXPECT_EQ(schedule.microbatches, 3);
  EXPECT_EQ(schedule.placement, (std::vector<std::vector<int>>{{0}, {1, 2}, {3}}));
  EXPECT_EQ(schedule.edges, (std::vector<Edge>{{0, 1}, {0, 2}, {1, 2}}));
}

TEST(Text, SpacesQuotesCommentsAndOtherLineEndsAreRead) {
  const Schedule schedule = load("# two ranks\r\n 0F0 , \"0B0\"\r\n1F0,( 1F1 ; 1B0 )OVERLAP_F_B\r\n\r\n");
  EXPECT_EQ(save(schedule), "0F0,0B0\n1F0,(1F1;1B0)OVERLAP_F_B\n\n");
}

TEST(Text, ErrorsNameLineAndColumn) {
  EXPECT_EQ(error_of(""), "load: plan.csv: no lines, expected one for each rank");
  EXPECT_EQ(error_of("0F0\n0F1,F2"), "load: plan.csv:2:5: found 'F', expected the number of a stage");
  EXPECT_EQ(error_of("0F0,0G1"),
            "load: plan.csv:1:6: unknown action 'G', expected a name such as F, B or SEND_F");
  EXPECT_EQ(
      error_of("0"),
      "load: plan.csv:1:2: found the end of the cell, expected the name of an action, such as F or SEND_F");
  EXPECT_EQ(error_of("0F"),
            "load: plan.csv:1:3: found the end of the cell, expected the number of a micro-batch");
  EXPECT_EQ(error_of("0F1x"), "load: plan.csv:1:4: found 'x', expected ',' or the end of the line");
  EXPECT_EQ(error_of("0F99999999999"),
            "load: plan.csv:1:3: found '9', expected a number of a micro-batch of at most 1000000");
  EXPECT_EQ(error_of("0UNSHARD3"), "load: plan.csv:1:9: found '3', expected no micro-batch after UNSHARD");
  EXPECT_EQ(error_of("0STASH"),
            "load: plan.csv:1:7: found the end of the cell, expected '@' and a version of the weights");
  EXPECT_EQ(error_of("(0F0;1B0"), "load: plan.csv:1:9: found the end of the cell, expected ';' or ')'");
  EXPECT_EQ(error_of("(0F0;1B0)F"),
            "load: plan.csv:1:11: found the end of the cell, expected OVERLAP_F_B after the parts");
  EXPECT_EQ(error_of("(0UNSHARD)OVERLAP_F_B"),
            "load: plan.csv:1:10: found ')', expected computations as parts of OVERLAP_F_B");
  EXPECT_EQ(
      error_of("0RECV_F1"),
      "load: plan.csv:1:9: found the end of the cell, expected ':' and the other stage, because no stage is "
      "before stage 0");
  EXPECT_EQ(
      error_of("3SEND_F1:1"),
      "load: plan.csv:1:11: found the end of the cell, expected an edge to a later stage, not from 3 to 1");
  EXPECT_EQ(error_of("0F0\n2F0"), "load: plan.csv: no rank computes stage 1 of 3, expected at least one");
  EXPECT_EQ(error_of("0F0\n0F0"),
            "load: plan.csv: ranks 0 and 1 both compute micro-batch 0 of stage 0, expected one of them");
}

// --- Schedules of torch.distributed.pipelining ---

struct FromTorch {
  const char* file;
  const char* type;
  Shape shape;
};

class TextFromTorch : public ::testing::TestWithParam<FromTorch> {};

TEST_P(TextFromTorch, LoadsAndSavesAndIsTheScheduleOfTheGenerator) {
  const auto& [file, type, shape] = GetParam();
  const std::string text = from_torch(file);
  const Schedule schedule = load(text, file);
  EXPECT_EQ(save(schedule), text);
  validate(schedule);
  const Schedule own = generate(type, shape);
  EXPECT_EQ(computations_of(schedule), own.ranks);
  EXPECT_EQ(schedule.placement, own.placement);
  if (text.find("SEND") != std::string::npos) prove_message_order(schedule);
}

INSTANTIATE_TEST_SUITE_P(All, TextFromTorch,
                         ::testing::Values(FromTorch{"gpipe_4_1_8", "gpipe", {4, 8}},
                                           FromTorch{"interleaved_4_2_8", "interleaved", {4, 8, 2}},
                                           FromTorch{"interleaved_4_2_8_messages", "interleaved", {4, 8, 2}},
                                           FromTorch{"interleaved_4_3_4", "interleaved", {4, 4, 3}},
                                           FromTorch{"looped-bfs_4_2_8", "looped-bfs", {4, 8, 2}},
                                           FromTorch{"looped-bfs_4_2_8_messages", "looped-bfs", {4, 8, 2}},
                                           FromTorch{"interleaved-zb_4_2_8", "interleaved-zb", {4, 8, 2}},
                                           FromTorch{
                                               "interleaved-zb_4_2_8_messages", "interleaved-zb", {4, 8, 2}},
                                           FromTorch{"zb-v_4_2_8", "zb-v", {4, 8}},
                                           FromTorch{"zb-v_4_2_8_messages", "zb-v", {4, 8}},
                                           FromTorch{"zb-v_4_2_3", "zb-v", {4, 3}},
                                           FromTorch{"dualpipe-v_4_2_8", "dualpipe-v", {4, 8}},
                                           FromTorch{"dualpipe-v_4_2_8_messages", "dualpipe-v", {4, 8}}),
                         [](const auto& info) {
                           std::string name = info.param.file;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The list that PyTorch gives for 1F1B leaves out micro-batch 0 on the last rank, and computes one that is
// not there.
TEST(Text, TheScheduleOf1F1BThatTorchWritesIsRefused) {
  const Schedule schedule = load(from_torch("1f1b_4_1_8"));
  EXPECT_EQ(test::message_of([&] { return validate(schedule), 0; }),
            "validate: rank 3: no forward of stage 3, micro-batch 0, expected one");
  EXPECT_EQ(one_forward_one_backward({4, 8}).ranks[3].front(),
            (Action{.op = Op::forward, .stage = 3, .microbatch = 0}));
}

}  // namespace text_test
}  // namespace weft::schedule::testing
