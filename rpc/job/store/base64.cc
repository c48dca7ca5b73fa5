#include <weft/rpc/job/store/base64.h>

#include <array>
#include <cstdint>

namespace weft::rpc::detail {
namespace {

constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t no_digit = 64;

constexpr std::array<std::uint8_t, 256> values = [] {
  std::array<std::uint8_t, 256> table{};
  table.fill(no_digit);
  for (std::size_t i = 0; i < digits.size(); ++i)
    table[static_cast<unsigned char>(digits[i])] = static_cast<std::uint8_t>(i);
  return table;
}();

}  // namespace

std::string to_base64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i)
      group = group << 8 | (at + i < bytes.size() ? std::to_integer<std::uint32_t>(bytes[at + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i)
      text += at + i <= bytes.size() ? digits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string_view meant = text;
  for (int i = 0; i < 2 && meant.ends_with('='); ++i) meant.remove_suffix(1);
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < meant.size(); ++i) {
    const std::uint8_t value = values[static_cast<unsigned char>(meant[i])];
    if (value == no_digit) return std::nullopt;
    group = group << 6 | value;
    // In each group of four digits, the second, third and fourth each complete a byte.
    if (i % 4 != 0) bytes.push_back(static_cast<std::byte>(group >> (6 - 2 * (i % 4)) & 0xff));
  }
  const std::size_t last = meant.size() % 4;  // with 2 or 3 digits, 4 or 2 bits remain
  if (last != 0 && (group & (last == 2 ? 15U : 3U)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace weft::rpc::detail
