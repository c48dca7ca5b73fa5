#include "tools/weft/rrefs_text.h"

#include <gtest/gtest.h>

namespace weft::tool::rrefs_text_test {
namespace {

rref::ReferenceListing listing() {
  rref::ReferenceListing all;
  all.agent = "owner";
  all.stats.objects = 3;
  all.stats.forks = 4;
  all.stats.references = 7;
  rref::ObjectListing one;
  one.id = "0001:0002";
  one.type = "box";
  one.state = "live";
  one.bytes = 2048;
  one.holds = 1;
  one.users = {"anna", "bert", "bert"};
  one.age = 2;
  one.site = "train.cc:12 on anna";
  all.objects = {one};
  all.more = 2;
  return all;
}

TEST(RRefsText, ListsObjectsAndReferences) {
  const std::string text = rrefs_text(listing());
  EXPECT_EQ(text.find("owner  3 objects, "), 0U) << text;
  for (const auto* words : {"4 forks elsewhere", "references  7 to objects elsewhere", "2.0 KiB", "  live",
                            "anna bert*2  box  0001:0002  train.cc:12 on anna\n", "2 more, younger ones\n"})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST(RRefsText, UnknownValuesAreMarked) {
  auto all = listing();
  all.objects[0].bytes.reset();
  all.objects[0].users.clear();
  all.objects[0].site.clear();
  EXPECT_NE(rrefs_text(all).find(" ?  live"), std::string::npos) << rrefs_text(all);
  EXPECT_NE(rrefs_text(all).find("-  box  0001:0002  -\n"), std::string::npos) << rrefs_text(all);
}

TEST(RRefsText, StringsOfAPeerDoNotControlTheTerminal) {
  auto all = listing();
  all.objects[0].type = "box\x1b[2J";
  all.objects[0].users = {"an\x07na"};
  const std::string text = rrefs_text(all);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
}

}  // namespace
}  // namespace weft::tool::rrefs_text_test
