// Renders a value as canonical text: equal values have equal texts, with attachments by size and checksum.
// For comparing the arguments of two calls, and for users.
#pragma once

#include <weft/rpc/wire/value.h>

namespace weft::rpc {

// Throws the errors of ValueReader.
WEFT_EXPORT std::string render(const ValueReader& value);

}  // namespace weft::rpc
