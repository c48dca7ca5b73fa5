// Renders a value as canonical text: equal values give equal texts, attachments by size and checksum. For
// comparing the arguments of two calls, and for people.
#pragma once

#include <weft/rpc/wire/value.h>

namespace weft::rpc {

// Errors: those of the reader.
WEFT_EXPORT std::string render(const ValueReader& value);

}  // namespace weft::rpc
