#include <weft/rpc/core/site.h>

#include <gtest/gtest.h>

namespace weft::rpc::site_test {
namespace {

Site place(Site site = Site::current()) { return site; }

TEST(Site, IsThatOfTheCaller) {
  EXPECT_EQ(place().text(), "site_test.cc:" + std::to_string(__LINE__));
  EXPECT_TRUE(place().known());
  EXPECT_FALSE(Site().known());
}

TEST(Site, KeepsAPlaceInAFileOfAnotherLanguage) {
  Site site;
  {
    std::string file = "/home/me/train.py, at a path that is too long for the string itself/train.py";
    site = Site::in_file(file, 12);
    file.assign(file.size(), 'x');
  }
  EXPECT_EQ(place(site).text(), "train.py:12");
}

TEST(Site, SaysThatItIsUnknown) {
  EXPECT_FALSE(Site().known());
  EXPECT_EQ(Site().text(), "an unknown place");
}

}  // namespace
}  // namespace weft::rpc::site_test
