// Sizes as people write and read them. Thread-safety: none needed.
#pragma once

#include <string>
#include <string_view>

namespace weft::tool {

// "40GiB", "12.5GB", "1e9": units of 1024 with an i, of 1000 without; a number alone is bytes. Throws
// UsageError.
double parse_bytes(std::string_view text);

// "512 B", "1.5 GiB", "120 GiB".
std::string bytes_text(double bytes);

}  // namespace weft::tool
