// The arguments of a call as they stand on the command line: one JSON value a parameter, or one list of all.
//
// A list alone is the list of all arguments, unless the method has one parameter that the list fits. A text
// that is no JSON is taken as it stands where a parameter is a str, or, as base64, bytes. Thread-safety: none
// needed.
#pragma once

#include <string>
#include <vector>

#include "tools/weft/method.h"
#include "tools/weft/plain_value.h"

namespace weft::tool {

struct GivenArgument {
  std::string text;
  bool from_stdin = false;  // is JSON, whatever it looks like
};

// Trailing optional parameters may be left out. Throws UsageError, which shows the method's signature.
std::vector<PlainValue> arguments_of(const Method& method, const std::vector<GivenArgument>& given);

}  // namespace weft::tool
