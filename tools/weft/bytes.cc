#include "tools/weft/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

constexpr std::array byte_units{
    std::pair{std::string_view(""), 1.0},       std::pair{std::string_view("B"), 1.0},
    std::pair{std::string_view("kB"), 1e3},     std::pair{std::string_view("KB"), 1e3},
    std::pair{std::string_view("MB"), 1e6},     std::pair{std::string_view("GB"), 1e9},
    std::pair{std::string_view("TB"), 1e12},    std::pair{std::string_view("KiB"), 0x1p10},
    std::pair{std::string_view("MiB"), 0x1p20}, std::pair{std::string_view("GiB"), 0x1p30},
    std::pair{std::string_view("TiB"), 0x1p40}};

}  // namespace

double parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  double factor = 0;
  for (const auto& [name, bytes] : byte_units)
    if (name == unit) factor = bytes;
  if (error != std::errc{} || factor == 0 || !std::isfinite(number * factor) || number < 0)
    throw UsageError("'" + printable(text) +
                     "' is not a number of bytes, expected for example 40GiB, 12.5GB or 1e9");
  return number * factor;
}

std::string bytes_text(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  char text[400];
  std::snprintf(text, sizeof text, unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

}  // namespace weft::tool
