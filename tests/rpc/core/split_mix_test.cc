#include <weft/rpc/core/split_mix.h>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

TEST(SplitMix64, AgreesWithTheReferenceImplementation) {  // Vigna's splitmix64.c with the seed 1234567
  SplitMix64 random(1234567);
  EXPECT_EQ(random(), 6457827717110365317u);
  EXPECT_EQ(random(), 3203168211198807973u);
  EXPECT_EQ(random(), 9817491932198370423u);
}

TEST(SplitMix64, ADrawIsTheOutputOfAMultipleOfTheStep) {
  SplitMix64 random(7);
  for (std::uint64_t draw = 1; draw <= 3; ++draw) EXPECT_EQ(random(), split_mix(7 + draw * split_mix_step));
}

}  // namespace
}  // namespace weft::rpc
