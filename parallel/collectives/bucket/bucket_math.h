// The arithmetic of one element of a bucket, for the kernel and for its twin on the CPU. For their sources.
//
// Types of 16 bits are their bits here, and conversions are made on bits, so that neither side's library or
// hardware has a say in them. Between float32 and float64 both sides' hardware rounds as IEEE 754 says.
#pragma once

#include <weft/parallel/collectives/bucket/bucket.h>
#include <weft/rpc/tensor/kernel/host_device.h>

#include <cstring>
#include <type_traits>

namespace weft::collectives::bucket {

// An IEEE 754 format: bits of the exponent and of the fraction.
template <int exponent_bits, int fraction_bits>
struct Layout {
  static constexpr int fraction = fraction_bits;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr int largest_exponent = (1 << exponent_bits) - 1;  // of infinities and NaN
};

struct Float16 {
  using Bits = Layout<5, 10>;
  std::uint16_t bits;
};
struct BFloat16 {
  using Bits = Layout<8, 7>;
  std::uint16_t bits;
};
template <class T>
inline constexpr bool is_narrow = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class To, class From>
WEFT_HOST_DEVICE inline To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// To nearest even, once. Wide is float or double.
template <class Narrow, class Wide>
WEFT_HOST_DEVICE inline Narrow narrow(Wide value) {
  using W = std::conditional_t<std::is_same_v<Wide, double>, Layout<11, 52>, Layout<8, 23>>;
  using N = typename Narrow::Bits;
  using Word = std::conditional_t<std::is_same_v<Wide, double>, std::uint64_t, std::uint32_t>;
  constexpr int width = 8 * sizeof(Word);

  const Word bits = same_bits<Word>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> (width - 1)) << 15);
  constexpr std::uint16_t infinity = N::largest_exponent << N::fraction;
  if (value != value) return {infinity | 1 << (N::fraction - 1)};

  const int exponent = static_cast<int>((bits >> W::fraction) & W::largest_exponent);
  Word significand = bits & ((Word{1} << W::fraction) - 1);
  if (exponent != 0) significand |= Word{1} << W::fraction;
  // As a narrow exponent; the smallest numbers of the wide format have that of 1.
  const int target = (exponent == 0 ? 1 : exponent) - W::bias + N::bias;
  if (target >= N::largest_exponent) return {static_cast<std::uint16_t>(sign | infinity)};

  // What is below the smallest normal number has fewer digits; by the last of these shifts none is left.
  int shift = W::fraction - N::fraction;
  if (target <= 0) shift += 1 - target;
  if (shift > W::fraction + 2) shift = W::fraction + 2;
  Word rounded = significand >> shift;
  const Word rest = significand & ((Word{1} << shift) - 1), half = Word{1} << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // A normal number's leading 1 counts into the exponent, and so does a carry, up to infinity.
  if (target > 0) rounded += static_cast<Word>(target - 1) << N::fraction;
  return {static_cast<std::uint16_t>(sign | rounded)};
}

WEFT_HOST_DEVICE inline float widen(BFloat16 value) {
  return same_bits<float>(std::uint32_t{value.bits} << 16);
}
WEFT_HOST_DEVICE inline float widen(Float16 value) {
  const std::uint32_t sign = (value.bits & 0x8000u) << 16, digits = value.bits & 0x7FFFu;
  std::uint32_t magnitude;
  if (digits < 0x0400u) {  // below the normal numbers: so many times 2^-24, which float has exactly
    magnitude = same_bits<std::uint32_t>(static_cast<float>(digits) * 0x1p-24f);
  } else {
    magnitude = (digits << 13) + (digits < 0x7C00u ? (127u - 15u) << 23 : (255u - 31u) << 23);
  }
  return same_bits<float>(sign | magnitude);
}
WEFT_HOST_DEVICE inline float widen(float value) { return value; }
WEFT_HOST_DEVICE inline double widen(double value) { return value; }

// What a product of the two types is made in.
template <class To, class From>
using Product = std::conditional_t<std::is_same_v<To, double> || std::is_same_v<From, double>, double, float>;

template <class To, class From>
WEFT_HOST_DEVICE inline To convert(From from, Product<To, From> scale) {
  const Product<To, From> product = static_cast<Product<To, From>>(widen(from)) * scale;
  if constexpr (is_narrow<To>) {
    return narrow<To>(product);
  } else if constexpr (std::is_same_v<To, double>) {
    return product != product ? same_bits<double>(std::uint64_t{0x7FF8} << 48) : product;
  } else {
    return product != product ? same_bits<float>(std::uint32_t{0x7FC0} << 16) : static_cast<float>(product);
  }
}

// Calls visit(T{}) with the type of `element`.
template <class Visit>
void with_type(Element element, Visit visit) {
  switch (element) {
    case Element::float16:
      return visit(Float16{});
    case Element::bfloat16:
      return visit(BFloat16{});
    case Element::float32:
      return visit(float{});
    case Element::float64:
      return visit(double{});
  }
}

}  // namespace weft::collectives::bucket
