// SimRandom: a seeded source of random numbers that is equal on every machine, compiler and library, unlike
// the distributions of the standard library.
//
// The generator is xoshiro256**, seeded by splitmix64 (Blackman and Vigna, 2018). A value; split() makes an
// independent source, so that the numbers for one part of a simulation do not depend on another part.
// Thread-safety: none.
#pragma once

#include <weft/rpc/core/split_mix.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::test {

class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) {
    rpc::SplitMix64 seeds(seed);
    for (std::uint64_t& word : state_) word = seeds();
  }

  // 64 random bits.
  std::uint64_t next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // 0 <= number < bound; bound must not be 0. The bias of the remainder does not matter here.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // A random value in the range, which includes both limits.
  std::uint64_t between(std::uint64_t min, std::uint64_t max) { return min + below(max - min + 1); }
  std::chrono::nanoseconds between(std::chrono::nanoseconds min, std::chrono::nanoseconds max) {
    return min + std::chrono::nanoseconds(below(static_cast<std::uint64_t>((max - min).count()) + 1));
  }
  std::chrono::nanoseconds up_to(std::chrono::nanoseconds max) {
    return between(std::chrono::nanoseconds{0}, max);
  }
  // chance(): true with this probability, in thousandths. coin(): true with probability 1/2.
  bool chance(std::uint64_t per_thousand) { return below(1000) < per_thousand; }
  bool coin() { return (next() >> 63) != 0; }

  // A value between `min` and `max`. Each power of two of the offset from `min` is equally likely, so small
  // offsets are about as likely as large ones.
  std::uint64_t spread(std::uint64_t min, std::uint64_t max) {
    const auto bits = static_cast<std::uint64_t>(std::bit_width(max - min));
    const std::uint64_t width = below(bits + 1);
    const std::uint64_t offset = width == 0 ? 0 : next() >> (64 - width);
    return min + (offset <= max - min ? offset : max - min);
  }

  // One of the items, all with the same probability; there must be at least one.
  template <class Items>
  auto& pick(Items& items) {
    return items[below(items.size())];
  }
  // Sets all bytes to random values.
  void fill(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next() >> 56);
  }
  // An independent source. Takes one number from this source.
  SimRandom split() { return SimRandom(next()); }

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace weft::test
