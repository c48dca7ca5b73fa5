// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): hashes and
// random numbers that are equal on every machine, compiler and library. draw_random(): a seed from the
// system.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace weft::rpc {

// An odd number derived from the golden ratio, so that its multiples are far apart.
inline constexpr std::uint64_t split_mix_step = 0x9e3779b97f4a7c15;

// The output function: a bijection. A change of one bit of x changes about half of the bits of the result.
constexpr std::uint64_t split_mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A number from the random source of the system, which is not the same on every machine.
inline std::uint64_t draw_random() {
  std::uint64_t number = 0;
  if (::getentropy(&number, sizeof number) != 0)
    throw std::system_error(errno, std::generic_category(), "getentropy");
  return number;
}

// A random number generator; a value. Thread-safety: none.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}
  // The next number, uniformly distributed over all 2^64.
  constexpr std::uint64_t operator()() { return split_mix(state_ += split_mix_step); }

 private:
  std::uint64_t state_;
};

}  // namespace weft::rpc
