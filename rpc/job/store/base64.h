// Base64 (RFC 4648, section 4, with padding), for bytes in JSON. Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc::detail {

WEFT_EXPORT std::string to_base64(std::span<const std::byte> bytes);
// nullopt if the text is malformed: an invalid character, a wrong length or padding, or nonzero bits in the
// padding.
WEFT_EXPORT std::optional<std::vector<std::byte>> from_base64(std::string_view text);

}  // namespace weft::rpc::detail
