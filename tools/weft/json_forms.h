// The JSON forms of values for which JSON has no form. Reading and printing use the same forms.
#pragma once

#include "tools/weft/type_grammar.h"

namespace weft::tool {

// Whether the JSON is an alternative of a variant: {"index": i, "value": …}.
template <class Json>
bool is_alternative(const Json& json) {
  return json.is_object() && json.size() == 2 && json.contains("index") && json.contains("value");
}

// Whether a value of this type may print as null. An optional is null or the JSON of its value. If that JSON
// may itself be null, or look like an alternative, the optional is {"index": 1, "value": …}.
inline bool prints_null(const Type& type) {
  return type.kind == TypeKind::optional || type.kind == TypeKind::nothing || type.kind == TypeKind::tensor;
}

}  // namespace weft::tool
