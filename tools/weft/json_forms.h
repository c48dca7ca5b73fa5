// The forms of JSON on which both ways agree, of what JSON itself has no form for.
#pragma once

#include <weft/rpc/codec/type_grammar.h>

namespace weft::tool {

// {"index": i, "value": …}: one alternative of a variant.
template <class Json>
bool is_alternative(const Json& json) {
  return json.is_object() && json.size() == 2 && json.contains("index") && json.contains("value");
}

// An optional is null or what it holds. Where that may be null too, or be taken for an alternative, it is
// held as {"index": 1, "value": …}.
inline bool prints_null(const rpc::Type& type) {
  return type.kind == rpc::TypeKind::optional || type.kind == rpc::TypeKind::nothing ||
         type.kind == rpc::TypeKind::tensor;
}

}  // namespace weft::tool
