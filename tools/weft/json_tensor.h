// Converts tensors on the wire (docs/internals/wire_protocol.md, 4) to JSON and back, without LibTorch:
//
//   {"dtype": "float32", "shape": [2, 2], "data": [[1.0, 2.0], [3.0, 4.0]]}
//
// Given, a tensor may be nested lists alone (booleans are bool, integers int64, other numbers float32), or
// lists without a shape; its data may be a flat list, or bytes as {"base64": …}. null is the undefined
// tensor. Thread-safety: none needed.
#pragma once

#include "tools/weft/json_text.h"
#include "tools/weft/plain_value.h"

#include <cstddef>
#include <optional>

namespace weft::tool {

// Throws Error(invalid_argument).
PlainValue tensor_from_json(const GivenJson& json);

// The record of a tensor. Empty if the value is not a tensor, or malformed. Of more than `most` elements only
// the first are printed, and "elided" is the number of the others. Its bytes are taken from the budget.
std::optional<PrintedJson> tensor_to_json(const rpc::ValueReader& value, std::size_t most,
                                          std::uint64_t& budget);

// Takes bytes from what may still be printed of a message. Throws Error(protocol_error) where it is spent.
void spend(std::uint64_t& budget, std::uint64_t bytes);

}  // namespace weft::tool
