// Times as people write and read them. Thread-safety: none needed.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace weft::tool {

// "5s", "300ms", "1.5s", "2m", "1h", "20us"; a number alone is seconds. Throws UsageError.
std::chrono::nanoseconds parse_duration(std::string_view text);

// Three digits and a unit: "0.123 ms", "4.56 s"; "3 h 12 min" where it is long.
std::string text_of(std::chrono::nanoseconds duration);

}  // namespace weft::tool
