#include <weft/parallel/collectives/levels.h>

#include <gtest/gtest.h>

namespace weft::collectives::testing {
namespace levels_test {

TEST(HostsOfRanks, AreThoseOfEquallyManyRanks) {
  const auto hosts = Hosts::of({"a", "b", "b", "a", "c", "c"}, 3);
  ASSERT_TRUE(hosts);
  EXPECT_EQ(hosts->ranks, (std::vector<std::vector<int>>{{0, 3}, {1, 2}, {4, 5}}));
  EXPECT_EQ(hosts->host, 0);
  EXPECT_EQ(hosts->index, 1);
  EXPECT_EQ(hosts->in_column(1), 2);
  EXPECT_EQ(hosts->host_of(4), 2);
  EXPECT_EQ(hosts->index_of(5), 1);
}

TEST(HostsOfRanks, AreNoneWhereTheyAreOneOrUneven) {
  EXPECT_FALSE(Hosts::of({"a", "a"}, 0));
  EXPECT_FALSE(Hosts::of({"a", "b"}, 0)) << "one rank each";
  EXPECT_FALSE(Hosts::of({"a", "a", "b"}, 0));
}

}  // namespace levels_test
}  // namespace weft::collectives::testing
