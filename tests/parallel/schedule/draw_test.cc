#include <weft/parallel/schedule/draw.h>

#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <string>

namespace weft::schedule::testing {
namespace draw_test {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Draw, ATableHasAColumnForEachUnitOfTime) {
  const Schedule schedule = one_forward_one_backward({2, 2});
  EXPECT_EQ(table(schedule, predict(schedule).timeline),
            "rank 0 | 0F0 0F1        0B0 ..     0B1 ..\n"
            "rank 1 |     1F0 1B0 .. 1F1 1B1 ..\n");
}

TEST(Draw, ATableOmitsActionsThatTakeNoTime) {
  const Schedule schedule = place_communication(fill_drain({2, 1}));
  EXPECT_EQ(table(schedule, predict(schedule).timeline),
            "rank 0 | 0F0            0B0 ..\nrank 1 |     1F0 1B0 ..\n");
}

TEST(Draw, ATableShowsBothPartsOfAPair) {
  const Schedule schedule = load("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
  EXPECT_NE(table(schedule, predict(schedule).timeline).find("0F1+1B0 .. .. 0B0 .."), std::string::npos);
}

TEST(Draw, EachComputationIsARectangleWithItsTimes) {
  const Schedule schedule = zb_h1({2, 3});
  const std::string picture = svg(schedule, {{"ZB-H1", predict(schedule).timeline}});
  EXPECT_EQ(count(picture, "class=\"f\">"), 6u);
  EXPECT_EQ(count(picture, "class=\"i\">"), 6u);
  EXPECT_EQ(count(picture, "class=\"w\">"), 6u);
  EXPECT_NE(picture.find("<title>1I0: 2 to 3</title>"), std::string::npos) << picture;
  EXPECT_EQ(count(picture, ">ZB-H1</text>"), 1u);
  EXPECT_EQ(count(picture, ">input gradient</text>"), 1u);
  EXPECT_EQ(count(picture, ">recompute</text>"), 0u);
}

TEST(Draw, PanelsShareOneScale) {
  const Schedule schedule = fill_drain({1, 1});
  Timeline measured = predict(schedule).timeline;
  measured.ranks[0][1].finish = 6;
  const std::string picture =
      svg(schedule, {{"predicted", predict(schedule).timeline}, {"measured <ms>", measured}});
  EXPECT_NE(picture.find(">measured &lt;ms&gt;</text>"), std::string::npos);
  // 860 pixels without margins and labels represent 6 seconds. A forward is a sixth of them in both panels.
  EXPECT_EQ(count(picture, "width=\"130\" height=\"22\" class=\"f\">"), 2u) << picture;
}

TEST(Draw, PairsShareTheirRowAndLaterStagesAreLighter) {
  const Schedule schedule = dual_pipe_v({2, 4});
  const std::string picture = svg(schedule, {{"DualPipeV", predict(schedule).timeline}});
  EXPECT_GT(count(picture, "height=\"11\" class=\"f\">"), 0u);
  EXPECT_GT(count(picture, "class=\"b late\">"), 0u);
}

TEST(Draw, MessagesAreLinesIfAskedFor) {
  const Schedule schedule = fill_drain({2, 3});
  const std::vector<Panel> panels = {{"messages", predict(schedule, {.link = 1}).timeline}};
  EXPECT_EQ(count(svg(schedule, panels), "class=\"message\""), 0u);
  EXPECT_EQ(count(svg(schedule, panels, {.transfers = true}), "class=\"message\""), 6u);
}

TEST(Draw, RefusesATimelineOfAnotherSchedule) {
  const Schedule schedule = fill_drain({2, 2});
  EXPECT_THROW(svg(schedule, {{"other", predict(fill_drain({3, 2})).timeline}}), rpc::Error);
  EXPECT_THROW(svg(schedule, {{"other", predict(fill_drain({2, 3})).timeline}}), rpc::Error);
  EXPECT_THROW(table(schedule, predict(fill_drain({3, 2})).timeline), rpc::Error);
}

}  // namespace draw_test
}  // namespace weft::schedule::testing
