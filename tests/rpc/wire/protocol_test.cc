#include <weft/rpc/wire/protocol.h>

#include "tests/support/errors.h"

namespace weft::rpc::protocol_test {
namespace {

HelloInfo peer(std::uint16_t oldest, std::uint16_t newest, std::uint64_t features = 0) {
  return {.version_min = oldest, .version_max = newest, .features = features, .name = "peer"};
}

TEST(Protocol, TheVersionInForceIsTheHighestInBothRanges) {
  const ProtocolRange own{2, 5, 0};
  EXPECT_EQ(negotiate(own, "own", peer(1, 9)).version, 5);
  EXPECT_EQ(negotiate(own, "own", peer(3, 4)).version, 4);
  EXPECT_EQ(negotiate(own, "own", peer(1, 2)).version, 2);
  EXPECT_EQ(negotiate(own, "own", peer(5, 5)).version, 5);
  EXPECT_EQ(negotiate({1, 1, 0}, "own", peer(0, 65535)).version, 1);
}

TEST(Protocol, RangesWithoutACommonVersionAreRefusedAndBothAreNamed) {
  for (const auto& [hello, words] : {std::pair{peer(6, 6), "'own' speaks 2 to 5, 'peer' 6"},
                                     {peer(0, 1), "'own' speaks 2 to 5, 'peer' 0 to 1"}}) {
    test::expect_error([&, &h = hello] { negotiate({2, 5, 0}, "own", h); }, ErrorKind::unsupported,
                       test::whole(std::string("no common protocol version: ") + words));
  }
}

TEST(Protocol, AnInvalidRangeIsABadFrame) {
  EXPECT_EQ(test::kind_of([] { negotiate({1, 9, 0}, "own", peer(3, 2)); }), ErrorKind::protocol_error);
}

TEST(Protocol, FeaturesInForceAreThoseThatBothSupport) {
  const Protocol both = negotiate({1, 1, 0b0110}, "own", peer(1, 1, 0b1100'0011));
  EXPECT_EQ(both.features, 0b0010U);
  EXPECT_TRUE(both.has(0b0010));
  EXPECT_FALSE(both.has(0b0110));
  EXPECT_EQ(negotiate(own_protocol, "own", peer(1, 1, ~std::uint64_t{0})).features, own_protocol.features)
      << "unknown bits are ignored";
}

}  // namespace
}  // namespace weft::rpc::protocol_test
