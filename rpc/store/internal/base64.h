// Base64 (RFC 4648, with padding): how JSON carries bytes.
#pragma once

#include <string>
#include <string_view>

namespace weft::rpc::detail {

std::string to_base64(std::string_view bytes);
std::string from_base64(std::string_view text);  // throws protocol_error

}  // namespace weft::rpc::detail
