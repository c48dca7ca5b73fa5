// arguments_of(): parses the arguments of a call from the command line: one JSON value for each parameter, or
// one list with all arguments.
//
// If the only argument is a list, it is the list of all arguments, unless the method has one parameter and
// the list fits this parameter. A text that is not JSON is accepted as it is for a parameter of type str, and
// as base64 for a parameter of type bytes. Thread-safety: functions without state.
#pragma once

#include <string>
#include <vector>

#include "tools/weft/method.h"
#include "tools/weft/plain_value.h"

namespace weft::tool {

struct GivenArgument {
  std::string text;
  bool from_stdin = false;  // the text must be JSON
};

// Trailing optional parameters may be omitted. If an argument is missing or does not fit, throws UsageError,
// which shows the method's signature.
std::vector<PlainValue> arguments_of(const Method& method, const std::vector<GivenArgument>& given);

}  // namespace weft::tool
