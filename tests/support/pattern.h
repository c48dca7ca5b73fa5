// A stream of bytes that a test sends and verifies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

namespace weft::test {

// The bytes differ between positions, so that a lost, repeated or moved byte is detected.
class Pattern {
 public:
  explicit Pattern(unsigned seed) : bytes_(3 * period) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < period; ++i)
      bytes_[i] = bytes_[i + period] = bytes_[i + 2 * period] = std::byte(random());
  }
  std::span<const std::byte> at(std::uint64_t position, std::size_t size) const {  // size: at most 2 * period
    return std::span(bytes_).subspan(position % period, size);
  }
  bool matches(std::uint64_t position, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const auto part = at(position, std::min(bytes.size(), period));
      if (std::memcmp(part.data(), bytes.data(), part.size()) != 0) return false;
      bytes = bytes.subspan(part.size());
      position += part.size();
    }
    return true;
  }

 private:
  static constexpr std::size_t period = 100'003;  // a prime: no ring or page is a multiple of it
  std::vector<std::byte> bytes_;
};

}  // namespace weft::test
