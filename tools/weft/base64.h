// Bytes as text, by RFC 4648, section 4. Thread-safety: none needed.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

std::string base64(std::span<const std::byte> bytes);
// Nothing where it is malformed: another character, a wrong length or padding.
std::optional<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace weft::tool
