#include "tools/weft/duration.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "tools/weft/errors.h"

namespace weft::tool {
namespace {

constexpr std::array units{std::pair{std::string_view("ns"), 1.0},   std::pair{std::string_view("us"), 1e3},
                           std::pair{std::string_view("ms"), 1e6},   std::pair{std::string_view("s"), 1e9},
                           std::pair{std::string_view("min"), 6e10}, std::pair{std::string_view("m"), 6e10},
                           std::pair{std::string_view("h"), 3.6e12}};

}  // namespace

std::chrono::nanoseconds parse_duration(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  double factor = unit.empty() ? 1e9 : 0;
  for (const auto& [name, nanoseconds] : units)
    if (name == unit) factor = nanoseconds;
  if (error != std::errc{} || factor == 0 || !std::isfinite(number) || number < 0)
    throw UsageError("'" + std::string(text) + "' is not a duration, expected for example 5s, 300ms or 1.5m");
  const double nanoseconds = number * factor;
  if (nanoseconds >= static_cast<double>(std::numeric_limits<std::int64_t>::max()))
    return std::chrono::nanoseconds::max();
  return std::chrono::nanoseconds(static_cast<std::int64_t>(nanoseconds));
}

std::string text_of(std::chrono::nanoseconds duration) {
  const auto count = duration.count();
  const auto minutes = count / 60'000'000'000;
  if (minutes >= 24 * 60)
    return std::to_string(minutes / (24 * 60)) + " d " + std::to_string(minutes / 60 % 24) + " h";
  if (minutes >= 60) return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
  if (minutes >= 2)
    return std::to_string(minutes) + " min " + std::to_string(count / 1'000'000'000 % 60) + " s";
  const double value = static_cast<double>(count);
  const bool seconds = value >= 1e9;
  const double shown = value / (seconds ? 1e9 : 1e6);
  char text[32];
  std::snprintf(text, sizeof text,
                shown < 1     ? "%.3f"
                : shown < 10  ? "%.2f"
                : shown < 100 ? "%.1f"
                              : "%.0f",
                shown);
  return std::string(text) + (seconds ? " s" : " ms");
}

std::string text_of_seconds(double seconds) {
  return text_of(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9))));
}

}  // namespace weft::tool
