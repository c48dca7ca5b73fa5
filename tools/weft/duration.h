// Converts durations to text for users, and back. Thread-safety: functions without state.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace weft::tool {

// Parses "5s", "300ms", "1.5s", "2m", "1h" or "20us". A number without a unit is in seconds. Throws
// UsageError if the text is malformed.
std::chrono::nanoseconds parse_duration(std::string_view text);

// The duration as three digits and a unit: "0.123 ms", "4.56 s". A long one has two units: "3 h 12 min".
std::string text_of(std::chrono::nanoseconds duration);
std::string text_of_seconds(double seconds);  // the same; limited to the range from 0 to 1e9

}  // namespace weft::tool
