// Converts values of the wire to JSON, and JSON to values of a declared type. docs/weft_tool.md has the
// rules.
//
// JSON of a user is checked against the type before a call is sent. Errors are Error(invalid_argument) with
// the position (".prices[3]: expected f64, found "x""). To print a value, no type is needed, because values
// describe themselves. With a type, optionals are printed as their value, and floats with a float's digits. A
// value that does not fit the type is printed as if no type was given. Thread-safety: functions without
// state.
#pragma once

#include "tools/weft/json_text.h"
#include "tools/weft/plain_value.h"
#include "tools/weft/type_grammar.h"

#include <cstddef>
#include <limits>

namespace weft::tool {

PlainValue value_of_json(const Type& type, const GivenJson& json);

// type: may be null. most: the maximum number of elements of a tensor, and of bytes, that are printed.
PrintedJson json_of_value(const rpc::ValueReader& value, const Type* type,
                          std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace weft::tool
