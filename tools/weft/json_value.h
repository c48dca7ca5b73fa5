// Values of the wire as JSON, and JSON as values of a declared type. docs/weft_tool.md has the rules.
//
// Given JSON is checked against the type before anything is sent: errors are Error(invalid_argument) and say
// where (".prices[3]: expected f64, found "x""). Printed JSON needs no type, since values describe
// themselves; with one, optionals are printed as what they hold and floats with a float's digits. What does
// not fit its type is printed as what it is. Thread-safety: none needed.
#pragma once

#include <weft/rpc/codec/type_grammar.h>

#include "tools/weft/json_text.h"
#include "tools/weft/plain_value.h"

#include <cstddef>
#include <limits>

namespace weft::tool {

PlainValue value_of_json(const rpc::Type& type, const GivenJson& json);

// Type may be null. Of a tensor, and of bytes, at most `most` elements are printed.
PrintedJson json_of_value(const rpc::ValueReader& value, const rpc::Type* type,
                          std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace weft::tool
