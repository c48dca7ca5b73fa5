// Method: a method that an agent lists, with its types parsed, and its text for users. Thread-safety:
// immutable.
#pragma once

#include <weft/rpc/agent/agent.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/weft/type_grammar.h"

namespace weft::tool {

struct Method {
  explicit Method(rpc::MethodInfo listed);

  rpc::MethodInfo info;
  // nullopt: this program cannot parse the type, because the agent is newer or its listing is malformed.
  std::vector<std::optional<ParsedType>> parameters;
  std::optional<ParsedType> result;

  // "(f64, str) -> Quote": structs by name only.
  std::string signature() const;
};

// The listed method with this name. If no method has it, throws UsageError, which names methods with similar
// names.
rpc::MethodInfo find_method(const std::vector<rpc::MethodInfo>& listed, const std::string& name);

// Whether a name matches a pattern: a shell pattern ("market.*"), or a part of the name.
bool matches(const std::string& name, const std::string& pattern);

// "Quote {symbol: str, price: f64}" for every struct in these types, each once.
std::vector<std::string> struct_texts(const std::vector<Method>& methods);

}  // namespace weft::tool
