// The element types of tensors, without LibTorch: their names on the wire, and their elements as numbers
// (docs/internals/wire_protocol.md, 4). Floating-point formats of less than 32 bits are computed here.
// Thread-safety: immutable.
#pragma once

#include "tools/weft/json_text.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::tool {

class Dtype {
 public:
  static const Dtype* find(std::string_view name);  // null: unknown

  std::string_view name() const { return name_; }
  std::size_t bytes() const { return bytes_; }  // the size of an element
  bool is_complex() const { return kind_ == Kind::complex; }

  // One element: true, 3, 0.25, "NaN", "-Infinity", or [re, im]. A floating-point number of 16 or 32 bits has
  // the fewest digits from which the same number is read.
  PrintedJson read(const std::byte* element) const;
  // Writes a number, or a part of a complex number. Throws Error(invalid_argument) if the JSON does not fit
  // the type.
  void write(std::byte* number, const GivenJson& json) const;
  std::size_t number_bytes() const { return is_complex() ? bytes_ / 2 : bytes_; }

  enum class Kind : std::uint8_t { boolean, integer, natural, real, complex };
  enum class Special : std::uint8_t {
    ieee,                     // the highest exponent represents infinities and NaN
    finite,                   // all ones are NaN, and there are no infinities: float8_e4m3fn
    finite_no_negative_zero,  // the code of -0 is NaN: float8_…fnuz
  };
  struct Format {
    int exponent_bits = 0, mantissa_bits = 0, bias = 0;
    Special special = Special::ieee;
  };
  constexpr Dtype(std::string_view name, Kind kind, std::size_t bytes) : Dtype(name, kind, bytes, Format()) {}
  constexpr Dtype(std::string_view name, Kind kind, std::size_t bytes, Format format)
      : name_(name), kind_(kind), bytes_(bytes), format_(format) {}

 private:
  double read_real(const std::byte* number) const;
  void write_real(std::byte* number, double value) const;

  std::string_view name_;
  Kind kind_;
  std::size_t bytes_;
  Format format_;
};

// A real number as JSON. JSON has neither NaN nor infinities, so these are strings with JavaScript's names.
PrintedJson real_json(double value);
PrintedJson real_json(float value);  // with a float's digits
// Converts JSON to a real number. Throws Error(invalid_argument), which names `expected`.
double real_of(const GivenJson& json, std::string_view expected);

// Convert JSON to an integer; 3.0 and 1e6 are integers, too. Throw Error(invalid_argument), which names
// `expected`.
std::int64_t integer_of(const GivenJson& json, std::int64_t least, std::int64_t most,
                        std::string_view expected);
std::uint64_t natural_of(const GivenJson& json, std::uint64_t most, std::string_view expected);

}  // namespace weft::tool
