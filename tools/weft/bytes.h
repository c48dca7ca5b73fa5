// Converts sizes in bytes to text for users, and back. Thread-safety: functions without state.
#pragma once

#include <string>
#include <string_view>

namespace weft::tool {

// Parses "40GiB", "12.5GB" or "1e9". Units with an i are powers of 1024, other units powers of 1000. A number
// without a unit is in bytes. Throws UsageError if the text is malformed.
double parse_bytes(std::string_view text);

// The size as text: "512 B", "1.5 GiB", "120 GiB".
std::string bytes_text(double bytes);

}  // namespace weft::tool
