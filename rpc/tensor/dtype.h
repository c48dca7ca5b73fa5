// The names of LibTorch's element types on the wire: "float32", "bfloat16", "int64", "bool", "complex64",
// "float8_e5m2", …
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/ScalarType.h>

#include <string_view>

namespace weft::tensor {

WEFT_EXPORT std::string_view dtype_name(c10::ScalarType type);       // throws unsupported (quantized types)
WEFT_EXPORT c10::ScalarType dtype_from_name(std::string_view name);  // throws unsupported

}  // namespace weft::tensor
