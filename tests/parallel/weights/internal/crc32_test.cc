// CRC-32 of any length equals that of its definition, bit by bit.
#include <weft/parallel/weights/internal/crc32.h>

#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace weft::weights::crc32_test {
namespace {

std::uint32_t defined(const std::vector<std::byte>& bytes, std::size_t size) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (std::size_t i = 0; i < size; ++i) {
    crc ^= static_cast<std::uint32_t>(bytes[i]);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320 & ~((crc & 1) - 1));
  }
  return ~crc;
}

TEST(Crc32, EqualsItsDefinition) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32_of(reinterpret_cast<const std::byte*>(digits.data()), digits.size()), 0xcbf43926U);
  std::vector<std::byte> bytes((std::size_t{9} << 20) + 5);  // of several parts
  std::mt19937 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t size = 0; size < 300; ++size)
    EXPECT_EQ(crc32_of(bytes.data(), size), defined(bytes, size)) << size;
  for (const std::size_t size : {std::size_t{1} << 20, bytes.size()})
    EXPECT_EQ(crc32_of(bytes.data(), size), defined(bytes, size)) << size;
}

}  // namespace
}  // namespace weft::weights::crc32_test
