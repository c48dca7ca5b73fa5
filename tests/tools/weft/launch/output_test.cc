#include "tools/weft/launch/output.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::tool::launch::output_test {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::vector<std::string>& pieces) {
  Lines lines;
  const auto add = [&](std::string_view line) { lines.emplace_back(line); };
  LineCutter cutter;
  for (const std::string& piece : pieces) cutter.take(piece, add);
  cutter.end(add);
  return lines;
}

TEST(LineCutter, CutsLinesAcrossPieces) {
  EXPECT_EQ(lines_of({"one\ntw", "o\n", "\nthree"}), (Lines{"one", "two", "", "three"}));
  EXPECT_EQ(lines_of({}), Lines{});
}

TEST(LineCutter, ACarriageReturnStartsTheLineAgain) {
  EXPECT_EQ(lines_of({"1%\r", "50%\r100%", "\ndone\r\nwell", "\r", "\n"}), (Lines{"100%", "done", "well"}));
}

TEST(LineCutter, ALineWithoutAnEndIsCut) {
  const auto lines = lines_of({std::string(LineCutter::longest + 3, 'x')});
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), LineCutter::longest);
  EXPECT_EQ(lines[1], "xxx");
}

TEST(LastLines, KeepsTheLastOnes) {
  LastLines last;
  EXPECT_EQ(last.text(), "");
  for (int line = 0; line < 25; ++line) last.take("line " + std::to_string(line)), last.take("  ");
  EXPECT_TRUE(last.text().starts_with("line 15\n")) << last.text();
  EXPECT_TRUE(last.text().ends_with("line 24\n")) << last.text();
  last.take(std::string(5000, 'x'));
  EXPECT_LT(last.text().size(), 1200U);
}

}  // namespace
}  // namespace weft::tool::launch::output_test
