#include "tools/weft/dtype.h"

#include <weft/rpc/core/error.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace weft::tool {
namespace {

using rpc::Error;
using rpc::ErrorKind;

constexpr Dtype::Format half{5, 10, 15}, brain{8, 7, 127}, single{8, 23, 127}, twice{11, 52, 1023};
constexpr Dtype::Format e5m2{5, 2, 15}, e4m3fn{4, 3, 7, Dtype::Special::finite},
    e5m2fnuz{5, 2, 16, Dtype::Special::finite_no_negative_zero},
    e4m3fnuz{4, 3, 8, Dtype::Special::finite_no_negative_zero};

constexpr std::array dtypes{
    Dtype("bool", Dtype::Kind::boolean, 1),
    Dtype("uint8", Dtype::Kind::natural, 1),
    Dtype("uint16", Dtype::Kind::natural, 2),
    Dtype("uint32", Dtype::Kind::natural, 4),
    Dtype("uint64", Dtype::Kind::natural, 8),
    Dtype("int8", Dtype::Kind::integer, 1),
    Dtype("int16", Dtype::Kind::integer, 2),
    Dtype("int32", Dtype::Kind::integer, 4),
    Dtype("int64", Dtype::Kind::integer, 8),
    Dtype("float16", Dtype::Kind::real, 2, half),
    Dtype("bfloat16", Dtype::Kind::real, 2, brain),
    Dtype("float32", Dtype::Kind::real, 4, single),
    Dtype("float64", Dtype::Kind::real, 8, twice),
    Dtype("complex32", Dtype::Kind::complex, 4, half),
    Dtype("complex64", Dtype::Kind::complex, 8, single),
    Dtype("complex128", Dtype::Kind::complex, 16, twice),
    Dtype("float8_e5m2", Dtype::Kind::real, 1, e5m2),
    Dtype("float8_e4m3fn", Dtype::Kind::real, 1, e4m3fn),
    Dtype("float8_e5m2fnuz", Dtype::Kind::real, 1, e5m2fnuz),
    Dtype("float8_e4m3fnuz", Dtype::Kind::real, 1, e4m3fnuz),
};

std::uint64_t load(const std::byte* from, std::size_t bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, bytes);  // little-endian, as on the wire
  return bits;
}
void store(std::byte* to, std::uint64_t bits, std::size_t bytes) { std::memcpy(to, &bits, bytes); }

std::int64_t extend(std::uint64_t bits, std::size_t bytes) {
  const unsigned unused = 64 - 8 * static_cast<unsigned>(bytes);
  return static_cast<std::int64_t>(bits << unused) >> unused;
}

[[noreturn]] void refuse(std::string_view expected, const GivenJson& json) {
  throw Error(ErrorKind::invalid_argument, "expected " + std::string(expected) + ", found " + excerpt(json));
}

// --- Formats of less than 32 bits: sign, exponent, mantissa ---

double decode(const Dtype::Format& format, std::uint64_t bits) {
  const std::uint64_t mantissa = bits & ((1U << format.mantissa_bits) - 1);
  const std::uint64_t exponent = bits >> format.mantissa_bits & ((1U << format.exponent_bits) - 1);
  const bool negative = (bits >> (format.mantissa_bits + format.exponent_bits) & 1) != 0;
  const std::uint64_t all_ones = (1U << format.exponent_bits) - 1;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  if (format.special == Dtype::Special::finite_no_negative_zero && negative && exponent == 0 && mantissa == 0)
    return nan;
  if (format.special == Dtype::Special::finite && exponent == all_ones &&
      mantissa == (1U << format.mantissa_bits) - 1)
    return nan;
  double value = 0;
  if (format.special == Dtype::Special::ieee && exponent == all_ones) {
    if (mantissa != 0) return nan;
    value = std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - format.bias - format.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa | 1U << format.mantissa_bits),
                       static_cast<int>(exponent) - format.bias - format.mantissa_bits);
  }
  return negative ? -value : value;
}

// The code of the nearest value, ties to even. nullopt: the nearest value exceeds the format's largest value.
std::optional<std::uint64_t> encode(const Dtype::Format& format, double value) {
  const int sign_at = format.mantissa_bits + format.exponent_bits;
  const std::uint64_t all_ones = (1U << format.exponent_bits) - 1;
  const std::uint64_t ones = (1U << format.mantissa_bits) - 1;
  const bool ieee = format.special == Dtype::Special::ieee;
  const std::uint64_t sign = std::signbit(value) ? std::uint64_t{1} << sign_at : 0;
  if (std::isnan(value)) {
    if (ieee) return all_ones << format.mantissa_bits | (ones + 1) >> 1;
    if (format.special == Dtype::Special::finite) return all_ones << format.mantissa_bits | ones;
    return std::uint64_t{1} << sign_at;
  }
  if (std::isinf(value)) return ieee ? std::optional(sign | all_ones << format.mantissa_bits) : std::nullopt;
  if (value == 0) return format.special == Dtype::Special::finite_no_negative_zero ? 0 : sign;
  const double magnitude = std::abs(value);
  int exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
  auto rounded =
      static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  if (rounded == (ones + 1) << 1) {
    rounded >>= 1;
    ++exponent;
  }
  if (rounded == 0) return format.special == Dtype::Special::finite_no_negative_zero ? 0 : sign;
  if (rounded <= ones) return sign | rounded;  // subnormal
  const auto biased = static_cast<std::uint64_t>(exponent + format.bias);
  if (biased > all_ones || (ieee && biased == all_ones)) return std::nullopt;
  const std::uint64_t bits = biased << format.mantissa_bits | (rounded & ones);
  if (format.special == Dtype::Special::finite && bits == (all_ones << format.mantissa_bits | ones))
    return std::nullopt;
  return sign | bits;
}

// The number with the fewest digits that rounds to `value` in a format with fewer digits than a double.
double shortest(const Dtype::Format& format, double value) {
  const auto wanted = encode(format, value);
  for (int digits = 1; digits < 17; ++digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    const double shorter = std::strtod(text, nullptr);
    if (encode(format, shorter) == wanted) return shorter;
  }
  return value;
}

}  // namespace

const Dtype* Dtype::find(std::string_view name) {
  for (const Dtype& dtype : dtypes)
    if (dtype.name_ == name) return &dtype;
  return nullptr;
}

double Dtype::read_real(const std::byte* number) const {
  const std::uint64_t bits = load(number, number_bytes());
  if (format_.mantissa_bits == twice.mantissa_bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  return decode(format_, bits);
}

void Dtype::write_real(std::byte* number, double value) const {
  if (format_.mantissa_bits == twice.mantissa_bits) {
    std::memcpy(number, &value, sizeof value);
    return;
  }
  const auto bits = encode(format_, value);
  if (!bits) refuse(std::string(name_) + ", which holds less", GivenJson(value));
  store(number, *bits, number_bytes());
}

PrintedJson Dtype::read(const std::byte* element) const {
  const auto real = [&](const std::byte* number) {
    const double value = read_real(number);
    if (format_.mantissa_bits == single.mantissa_bits) return real_json(static_cast<float>(value));
    // A format of 8 bits has few values, so its numbers are printed exactly. Whole numbers below 1e6 are
    // printed exactly, too.
    const bool whole = value == std::trunc(value) && std::abs(value) < 1e6;
    const bool exact = whole || number_bytes() == 1 || number_bytes() == sizeof(double);
    return real_json(exact || !std::isfinite(value) ? value : shortest(format_, value));
  };
  switch (kind_) {
    case Kind::boolean:
      return load(element, 1) != 0;
    case Kind::natural:
      return load(element, bytes_);
    case Kind::integer:
      return extend(load(element, bytes_), bytes_);
    case Kind::real:
      return real(element);
    case Kind::complex:
      return PrintedJson::array({real(element), real(element + number_bytes())});
  }
  return nullptr;
}

void Dtype::write(std::byte* number, const GivenJson& json) const {
  switch (kind_) {
    case Kind::boolean:
      if (!json.is_boolean()) refuse(name_, json);
      return store(number, json.get<bool>() ? 1 : 0, 1);
    case Kind::natural:
      return store(number,
                   natural_of(json, ~std::uint64_t{0} >> (64 - 8 * static_cast<unsigned>(bytes_)), name_),
                   bytes_);
    case Kind::integer: {
      const std::int64_t most =
          std::numeric_limits<std::int64_t>::max() >> (64 - 8 * static_cast<unsigned>(bytes_));
      return store(number, static_cast<std::uint64_t>(integer_of(json, -most - 1, most, name_)), bytes_);
    }
    case Kind::real:
    case Kind::complex:
      return write_real(number, real_of(json, name_));
  }
}

PrintedJson real_json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

PrintedJson real_json(float value) {
  if (!std::isfinite(value)) return real_json(static_cast<double>(value));
  char text[32];
  *std::to_chars(text, text + sizeof text - 1, value).ptr = '\0';
  return std::strtod(text, nullptr);
}

double real_of(const GivenJson& json, std::string_view expected) {
  if (json.is_number()) {
    const double value = json.get<double>();
    return value;
  }
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  }
  refuse(expected, json);
}

std::int64_t integer_of(const GivenJson& json, std::int64_t least, std::int64_t most,
                        std::string_view expected) {
  constexpr double exact = 9007199254740992;  // 2^53: above it, not every integer is a double
  std::int64_t value = 0;
  if (json.is_number_unsigned()) {
    if (!std::in_range<std::int64_t>(json.get<std::uint64_t>())) refuse(expected, json);
    value = json.get<std::int64_t>();
  } else if (json.is_number_integer()) {
    value = json.get<std::int64_t>();
  } else if (json.is_number_float()) {
    const double real = json.get<double>();
    if (!(std::abs(real) <= exact) || real != std::trunc(real)) refuse(expected, json);
    value = static_cast<std::int64_t>(real);
  } else {
    refuse(expected, json);
  }
  if (value < least || value > most) refuse(expected, json);
  return value;
}

std::uint64_t natural_of(const GivenJson& json, std::uint64_t most, std::string_view expected) {
  const std::uint64_t value = json.is_number_unsigned()
                                  ? json.get<std::uint64_t>()
                                  : static_cast<std::uint64_t>(integer_of(
                                        json, 0, std::numeric_limits<std::int64_t>::max(), expected));
  if (value > most) refuse(expected, json);
  return value;
}

}  // namespace weft::tool
