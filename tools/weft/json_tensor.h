// Converts tensors on the wire (docs/internals/wire_protocol.md, 4) to JSON and back, without LibTorch:
//
//   {"dtype": "float32", "shape": [2, 2], "data": [[1.0, 2.0], [3.0, 4.0]]}
//
// A user may also write a tensor as nested lists (booleans are bool, integers int64, other numbers float32),
// or omit the shape. The data may be a flat list, or bytes as {"base64": …}. null is the undefined tensor.
// Thread-safety: functions without state.
#pragma once

#include "tools/weft/json_text.h"
#include "tools/weft/plain_value.h"

#include <cstddef>
#include <optional>

namespace weft::tool {

// Throws Error(invalid_argument) if the JSON is not a tensor.
PlainValue tensor_from_json(const GivenJson& json);

// The JSON of a tensor. nullopt if the value is not a tensor, or is malformed. If the tensor has more than
// `most` elements, only the first ones are printed, and "elided" is the number of the other elements. The
// budget is reduced by the size of the tensor.
std::optional<PrintedJson> tensor_to_json(const rpc::ValueReader& value, std::size_t most,
                                          std::uint64_t& budget);

// Reduces the budget: the number of bytes of a message that may still be printed. Throws
// Error(protocol_error) if the budget is too small.
void spend(std::uint64_t& budget, std::uint64_t bytes);

}  // namespace weft::tool
