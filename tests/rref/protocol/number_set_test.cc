#include <gtest/gtest.h>
#include <weft/rref/protocol/number_set.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>

namespace weft::rref::protocol::protocol_number_set_test {
namespace {

TEST(NumberSet, HoldsTheSmallestAndTheLargestNumber) {
  constexpr std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  NumberSet set;
  EXPECT_TRUE(set.insert(last));
  EXPECT_TRUE(set.insert(0));
  EXPECT_TRUE(set.insert(last - 1));
  EXPECT_EQ(set.ranges(), 2U);
  EXPECT_FALSE(set.insert(last));
  EXPECT_FALSE(set.contains(1));
}

TEST(NumberSet, AgreesWithAPlainSet) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 50; ++round) {
    NumberSet set;
    std::set<std::uint64_t> plain;
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t number = random() % 200;
      EXPECT_EQ(set.insert(number), plain.insert(number).second);
      if (i % 100 != 99) continue;
      const std::uint64_t below = random() % 60;
      set.insert_below(below);
      for (std::uint64_t smaller = 0; smaller < below; ++smaller) plain.insert(smaller);
    }
    std::size_t ranges = 0;
    for (std::uint64_t number = 0; number < 201; ++number) {
      EXPECT_EQ(set.contains(number), plain.contains(number));
      ranges += plain.contains(number) && !plain.contains(number + 1) ? 1 : 0;
    }
    EXPECT_EQ(set.ranges(), ranges);
  }
}

}  // namespace
}  // namespace weft::rref::protocol::protocol_number_set_test
