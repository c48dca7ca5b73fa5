#include <weft/parallel/collectives/operation/internal/reduction.h>
#include <weft/rpc/core/error.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <type_traits>

// Loops over whole arrays are compiled for the vector units that a machine may have, and selected when the
// program is loaded; sanitizers are not ready at that time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define WEFT_VECTOR_CLONES __attribute__((target_clones("default", "avx2", "arch=x86-64-v4"), optimize("O3")))
#else
#define WEFT_VECTOR_CLONES
#endif
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::collectives {

namespace {

using Kind = ReduceOp::Kind;
using c10::ScalarType;

// bool is sent as bytes of 0 and 1. On these, sum and max are `or`, and product and min are `and`.
struct Bool {};

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;

// Calls visit(T{}) with the accumulating type; false for a type without one.
template <class Visit>
WEFT_INLINE bool with_accumulator(ScalarType type, Visit visit) {
  switch (type) {
    case ScalarType::Byte:
      return visit(std::uint8_t{});
    case ScalarType::Char:
      return visit(std::int8_t{});
    case ScalarType::Short:
      return visit(std::int16_t{});
    case ScalarType::Int:
      return visit(std::int32_t{});
    case ScalarType::Long:
      return visit(std::int64_t{});
    case ScalarType::UInt16:
      return visit(std::uint16_t{});
    case ScalarType::UInt32:
      return visit(std::uint32_t{});
    case ScalarType::UInt64:
      return visit(std::uint64_t{});
    case ScalarType::Float:
      return visit(float{});
    case ScalarType::Double:
      return visit(double{});
    case ScalarType::ComplexFloat:
      return visit(std::complex<float>{});
    case ScalarType::ComplexDouble:
      return visit(std::complex<double>{});
    case ScalarType::Bool:
      return visit(Bool{});
    default:
      return false;
  }
}

bool is_narrow(ScalarType type) {
  switch (type) {
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e5m2fnuz:
      return true;
    default:
      return false;
  }
}

// The operations of a type.
template <class T>
constexpr bool has(Kind kind) {
  switch (kind) {
    case Kind::sum:
    case Kind::product:
      return true;
    case Kind::avg:
      return !std::is_same_v<T, Bool>;
    case Kind::min:
    case Kind::max:
      return !is_complex<T>;
    case Kind::bit_and:
    case Kind::bit_or:
    case Kind::bit_xor:
      return std::is_integral_v<T> || std::is_same_v<T, Bool>;
    case Kind::premul_sum:
      return std::is_floating_point_v<T> || is_complex<T>;
  }
  return false;
}

template <class T>
WEFT_INLINE T smaller(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    return left != left || left < right ? left : right != right || right < left ? right : left;
  } else {
    return left < right ? left : right;
  }
}
template <class T>
WEFT_INLINE T larger(T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    return left != left || left > right ? left : right != right || right > left ? right : left;
  } else {
    return left > right ? left : right;
  }
}

template <class T>
WEFT_INLINE std::complex<T> multiply(std::complex<T> left, std::complex<T> right) {
  return {left.real() * right.real() - left.imag() * right.imag(),
          left.real() * right.imag() + left.imag() * right.real()};
}

template <class T, class F>
WEFT_INLINE void each(std::byte* to, const std::byte* left, const std::byte* right, std::size_t n, F f) {
  T* const out = reinterpret_cast<T*>(to);
  const T* const a = reinterpret_cast<const T*>(left);
  const T* const b = reinterpret_cast<const T*>(right);
  for (std::size_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}

template <class T>
WEFT_INLINE void combine_as(Kind kind, std::byte* to, const std::byte* left, const std::byte* right,
                            std::size_t n) {
  if constexpr (std::is_same_v<T, Bool>) {
    using B = std::uint8_t;
    switch (kind) {
      case Kind::product:
      case Kind::min:
      case Kind::bit_and:
        return each<B>(to, left, right, n, [](B a, B b) -> B { return a & b; });
      case Kind::bit_xor:
        return each<B>(to, left, right, n, [](B a, B b) -> B { return a ^ b; });
      default:
        return each<B>(to, left, right, n, [](B a, B b) -> B { return a | b; });
    }
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // its sums and products wrap
    switch (kind) {
      case Kind::product:
        return each<U>(to, left, right, n, [](U a, U b) { return static_cast<U>(std::uint64_t{a} * b); });
      case Kind::min:
        return each<T>(to, left, right, n, [](T a, T b) { return smaller(a, b); });
      case Kind::max:
        return each<T>(to, left, right, n, [](T a, T b) { return larger(a, b); });
      case Kind::bit_and:
        return each<U>(to, left, right, n, [](U a, U b) -> U { return a & b; });
      case Kind::bit_or:
        return each<U>(to, left, right, n, [](U a, U b) -> U { return a | b; });
      case Kind::bit_xor:
        return each<U>(to, left, right, n, [](U a, U b) -> U { return a ^ b; });
      default:
        return each<U>(to, left, right, n, [](U a, U b) { return static_cast<U>(a + b); });
    }
  } else if constexpr (is_complex<T>) {
    if (kind == Kind::product) return each<T>(to, left, right, n, [](T a, T b) { return multiply(a, b); });
    using Real = typename T::value_type;
    return each<Real>(to, left, right, 2 * n, [](Real a, Real b) { return a + b; });
  } else {
    switch (kind) {
      case Kind::product:
        return each<T>(to, left, right, n, [](T a, T b) { return a * b; });
      case Kind::min:
        return each<T>(to, left, right, n, [](T a, T b) { return smaller(a, b); });
      case Kind::max:
        return each<T>(to, left, right, n, [](T a, T b) { return larger(a, b); });
      default:
        return each<T>(to, left, right, n, [](T a, T b) { return a + b; });
    }
  }
}

WEFT_VECTOR_CLONES
void combine_all(Kind kind, ScalarType type, std::byte* to, const std::byte* left, const std::byte* right,
                 std::size_t n) {
  with_accumulator(type, [&](auto sample) __attribute__((always_inline)) {
    combine_as<decltype(sample)>(kind, to, left, right, n);
    return true;
  });
}

// bfloat16 is the upper half of a float, so the conversion is simple enough for the vector units.
WEFT_VECTOR_CLONES
void widen_bfloat16(float* to, const std::byte* from, std::size_t n) {
  const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
  for (std::size_t i = 0; i < n; ++i) to[i] = std::bit_cast<float>(std::uint32_t{bits[i]} << 16);
}
WEFT_VECTOR_CLONES
void narrow_bfloat16(std::byte* to, const float* from, std::size_t n) {
  auto* const bits = reinterpret_cast<std::uint16_t*>(to);
  for (std::size_t i = 0; i < n; ++i) {
    const auto wide = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16;
    bits[i] = static_cast<std::uint16_t>(from[i] != from[i] ? 0x7FC0 : rounded);
  }
}

#ifdef __FLT16_MANT_DIG__
using Half = _Float16;
#else
using Half = c10::Half;
#endif
WEFT_VECTOR_CLONES
void widen_half(float* to, const std::byte* from, std::size_t n) {
  const auto* const halves = reinterpret_cast<const Half*>(from);
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(halves[i]);
}
WEFT_VECTOR_CLONES
void narrow_half(std::byte* to, const float* from, std::size_t n) {
  auto* const halves = reinterpret_cast<Half*>(to);
  for (std::size_t i = 0; i < n; ++i) halves[i] = static_cast<Half>(from[i]);
}

template <class T>
void widen_as(float* to, const std::byte* from, std::size_t n) {
  const auto* const values = reinterpret_cast<const T*>(from);
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(values[i]);
}
template <class T>
void narrow_as(std::byte* to, const float* from, std::size_t n) {
  auto* const values = reinterpret_cast<T*>(to);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>(from[i]);
}

template <class T>
WEFT_INLINE void divide_as(std::byte* to, const std::byte* from, std::size_t n, int ranks) {
  if constexpr (std::is_same_v<T, Bool>) {
    return;  // it has no average
  } else {
    T* const out = reinterpret_cast<T*>(to);
    const T* const in = reinterpret_cast<const T*>(from);
    if constexpr (is_complex<T>) {
      const auto divisor = static_cast<typename T::value_type>(ranks);
      for (std::size_t i = 0; i < n; ++i) out[i] = in[i] / divisor;
    } else if constexpr (std::is_integral_v<T>) {
      for (std::size_t i = 0; i < n; ++i) {
        // The type is too narrow for the number of ranks: all its values are smaller than that number.
        out[i] = static_cast<T>(
            static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(in[i]) / ranks);
      }
    } else {
      for (std::size_t i = 0; i < n; ++i) out[i] = in[i] / static_cast<T>(ranks);
    }
  }
}

WEFT_VECTOR_CLONES
void divide_all(ScalarType type, std::byte* to, const std::byte* from, std::size_t n, int ranks) {
  with_accumulator(type, [&](auto sample) __attribute__((always_inline)) {
    divide_as<decltype(sample)>(to, from, n, ranks);
    return true;
  });
}

template <class T>
WEFT_INLINE void scale_as(std::byte* to, const std::byte* from, std::size_t n, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    T* const out = reinterpret_cast<T*>(to);
    const T* const in = reinterpret_cast<const T*>(from);
    for (std::size_t i = 0; i < n; ++i) out[i] = in[i] * static_cast<T>(factor);
  } else if constexpr (is_complex<T>) {
    scale_as<typename T::value_type>(to, from, 2 * n, factor);
  }
}

WEFT_VECTOR_CLONES
void scale_all(ScalarType type, std::byte* to, const std::byte* from, std::size_t n, double factor) {
  with_accumulator(type, [&](auto sample) __attribute__((always_inline)) {
    scale_as<decltype(sample)>(to, from, n, factor);
    return true;
  });
}

// Narrow types are converted in blocks of this size, on the stack and in the cache.
inline constexpr std::size_t block = 1024;
using Block = std::array<float, block>;

const char* const names[] = {"sum",     "avg",    "product", "min",       "max",
                             "bit_and", "bit_or", "bit_xor", "premul_sum"};

}  // namespace

void widen(ScalarType type, float* to, const std::byte* from, std::size_t n) {
  switch (type) {
    case ScalarType::Half:
      return widen_half(to, from, n);
    case ScalarType::BFloat16:
      return widen_bfloat16(to, from, n);
    case ScalarType::Float8_e4m3fn:
      return widen_as<c10::Float8_e4m3fn>(to, from, n);
    case ScalarType::Float8_e4m3fnuz:
      return widen_as<c10::Float8_e4m3fnuz>(to, from, n);
    case ScalarType::Float8_e5m2:
      return widen_as<c10::Float8_e5m2>(to, from, n);
    default:
      return widen_as<c10::Float8_e5m2fnuz>(to, from, n);
  }
}
void narrow(ScalarType type, std::byte* to, const float* from, std::size_t n) {
  switch (type) {
    case ScalarType::Half:
      return narrow_half(to, from, n);
    case ScalarType::BFloat16:
      return narrow_bfloat16(to, from, n);
    case ScalarType::Float8_e4m3fn:
      return narrow_as<c10::Float8_e4m3fn>(to, from, n);
    case ScalarType::Float8_e4m3fnuz:
      return narrow_as<c10::Float8_e4m3fnuz>(to, from, n);
    case ScalarType::Float8_e5m2:
      return narrow_as<c10::Float8_e5m2>(to, from, n);
    default:
      return narrow_as<c10::Float8_e5m2fnuz>(to, from, n);
  }
}

std::string ReduceOp::name() const { return names[static_cast<std::size_t>(kind)]; }

namespace {

// The types for which an operation is defined.
const char* types_of(Kind kind) {
  switch (kind) {
    case Kind::sum:
    case Kind::product:
      return "integers, floating-point numbers, complex numbers or bool";
    case Kind::avg:
      return "integers, floating-point numbers or complex numbers";
    case Kind::min:
    case Kind::max:
      return "integers, floating-point numbers or bool";
    case Kind::bit_and:
    case Kind::bit_or:
    case Kind::bit_xor:
      return "integers or bool";
    case Kind::premul_sum:
      return "floating-point numbers or complex numbers";
  }
  return "";
}

}  // namespace

Reduction::Reduction(ReduceOp op, ScalarType type) : op_(op), type_(type), wide_(is_narrow(type)) {
  const ScalarType accumulator = wide_ ? ScalarType::Float : type;
  const bool known =
      with_accumulator(accumulator, [&](auto sample) { return has<decltype(sample)>(op.kind); });
  if (!known) {
    throw rpc::Error(rpc::ErrorKind::unsupported, op.name() + " is not supported for elements of type " +
                                                      c10::toString(type) + ", expected " +
                                                      types_of(op.kind));
  }
  item_size_ = c10::elementSize(type);
  accumulator_size_ = c10::elementSize(accumulator);
}

void Reduction::combine(std::byte* accumulator, Operand left, Operand right, std::size_t n) const {
  if (!wide_) return combine_all(op_.kind, type_, accumulator, left.data, right.data, n);
  Block left_block, right_block;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    const auto floats = [&](Operand operand, Block& buffer) -> const std::byte* {
      if (operand.accumulated) return operand.data + begin * accumulator_size_;
      widen(type_, buffer.data(), operand.data + begin * item_size_, count);
      return reinterpret_cast<const std::byte*>(buffer.data());
    };
    combine_all(op_.kind, ScalarType::Float, accumulator + begin * accumulator_size_,
                floats(left, left_block), floats(right, right_block), count);
  }
}

void Reduction::finish(std::byte* output, const std::byte* accumulator, std::size_t n, int ranks) const {
  const bool divides = op_.kind == Kind::avg;
  if (!wide_) {
    if (divides) return divide_all(type_, output, accumulator, n, ranks);
    if (output != accumulator) std::memcpy(output, accumulator, n * item_size_);
    return;
  }
  Block quotients;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    const auto* floats = reinterpret_cast<const float*>(accumulator) + begin;
    if (divides) {
      divide_all(ScalarType::Float, reinterpret_cast<std::byte*>(quotients.data()),
                 reinterpret_cast<const std::byte*>(floats), count, ranks);
      floats = quotients.data();
    }
    narrow(type_, output + begin * item_size_, floats, count);
  }
}

void Reduction::premultiply(std::byte* output, const std::byte* input, std::size_t n) const {
  if (!wide_) return scale_all(type_, output, input, n, op_.factor);
  Block products;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    auto* const bytes = reinterpret_cast<std::byte*>(products.data());
    widen(type_, products.data(), input + begin * item_size_, count);
    scale_all(ScalarType::Float, bytes, bytes, count, op_.factor);
    narrow(type_, output + begin * item_size_, products.data(), count);
  }
}

}  // namespace weft::collectives
