// Base64 (RFC 4648, with padding): how JSON carries bytes.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <string_view>

namespace weft::rpc::detail {

WEFT_EXPORT std::string to_base64(std::string_view bytes);
WEFT_EXPORT std::string from_base64(std::string_view text);  // throws protocol_error

}  // namespace weft::rpc::detail
