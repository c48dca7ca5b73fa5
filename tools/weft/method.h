// A method as its agent lists it, its types parsed, and how it is shown. Thread-safety: immutable.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/type_grammar.h>

#include <optional>
#include <string>
#include <vector>

namespace weft::tool {

struct Method {
  explicit Method(rpc::MethodInfo listed);

  rpc::MethodInfo info;
  // Nothing where this program cannot read the type: the agent is newer, or the listing is no good.
  std::vector<std::optional<rpc::ParsedType>> parameters;
  std::optional<rpc::ParsedType> result;

  // "(f64, str) -> Quote": structs by name only.
  std::string signature() const;
};

// The listed method of that name. Throws UsageError, which tells of methods of similar names.
rpc::MethodInfo find_method(const std::vector<rpc::MethodInfo>& listed, const std::string& name);

// Whether a name matches what was asked for: a pattern of the shell ("market.*"), or a part of the name.
bool matches(const std::string& name, const std::string& pattern);

// "Quote {symbol: str, price: f64}" for every struct in these types, each once.
std::vector<std::string> struct_texts(const std::vector<Method>& methods);

std::string readable(const rpc::Type& type);

}  // namespace weft::tool
