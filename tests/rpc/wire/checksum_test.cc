#include <weft/rpc/wire/checksum.h>

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace weft::rpc::checksum_test {
namespace {

std::vector<std::byte> text(std::string_view characters) {
  const auto bytes = std::as_bytes(std::span(characters));
  return {bytes.begin(), bytes.end()};
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
struct Known {
  std::vector<std::byte> bytes;
  std::uint32_t checksum;
};
std::vector<Known> known() {
  std::vector<std::byte> up(32), down(32);
  for (int i = 0; i < 32; ++i) {
    up[static_cast<std::size_t>(i)] = std::byte(i);
    down[static_cast<std::size_t>(i)] = std::byte(31 - i);
  }
  return {{{}, 0},
          {text("123456789"), 0xe3069283},
          {std::vector<std::byte>(32, std::byte{0}), 0x8a9136aa},
          {std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43},
          {up, 0x46dd794e},
          {down, 0x113fdb5c}};
}

TEST(Checksum, HasTheKnownValuesOnBothPaths) {
  for (const auto& [bytes, checksum] : known()) {
    EXPECT_EQ(crc32c(bytes), checksum);
    EXPECT_EQ(detail::crc32c_portable(bytes, 0), checksum);
  }
}

TEST(Checksum, ContinuesAtAnyByteAndAgreesOnBothPaths) {
  std::vector<std::byte> bytes(257);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 37 + 11);
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto a = std::span(bytes).first(cut), b = std::span(bytes).subspan(cut);  // b begins unaligned
    EXPECT_EQ(crc32c(b, crc32c(a)), whole);
    EXPECT_EQ(detail::crc32c_portable(b, crc32c(a)), whole);
  }
}

TEST(Checksum, DetectsEveryChangedBit) {
  std::vector<std::byte> bytes(64, std::byte{0x5a});
  const std::uint32_t whole = crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_NE(crc32c(bytes), whole);
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace weft::rpc::checksum_test
