// render(): a value as canonical text. Equal values have equal texts. The text of an attachment is its size
// and checksum. The text is used to compare the arguments of two calls, and in messages for users.
#pragma once

#include <weft/rpc/wire/value.h>

namespace weft::rpc {

// Throws the errors of ValueReader.
WEFT_EXPORT std::string render(const ValueReader& value);

}  // namespace weft::rpc
