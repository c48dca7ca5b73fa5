#include "tools/weft/arguments.h"

#include <weft/rpc/core/error.h>

#include "tools/weft/errors.h"
#include "tools/weft/json_value.h"

namespace weft::tool {
namespace {

using rpc::Error;

[[noreturn]] void refuse(const Method& method, const std::string& what) {
  throw UsageError(what + "\n  " + printable(method.info.name) + method.signature());
}

std::string which(const Method& method, std::size_t i) {
  return method.parameters.size() == 1 ? "the argument" : "argument " + std::to_string(i + 1);
}

const Type& type_of(const Method& method, std::size_t i) {
  if (!method.parameters[i])
    refuse(method, which(method, i) + " is of a type that this program cannot read: " +
                       printable(excerpt(method.info.parameters[i])));
  return **method.parameters[i];
}

// Whether the argument may be a text without quotation marks: it does not begin like a JSON string, list or
// object.
bool may_be_bare(const GivenArgument& given) {
  return !given.from_stdin && given.text.find_first_of("\"{[") != 0;
}

std::optional<PlainValue> bare_text(const Type& type, const std::string& text) {
  const Type& inner = type.kind == TypeKind::optional ? *type.parts[0] : type;
  if (inner.kind != TypeKind::text && inner.kind != TypeKind::bytes) return std::nullopt;
  return value_of_json(type, GivenJson(text));
}

PlainValue argument(const Method& method, std::size_t i, const GivenArgument& given) {
  const Type& type = type_of(method, i);
  std::optional<GivenJson> json;
  std::string why;
  try {
    json = parse_json(given.text);
    return value_of_json(type, *json);
  } catch (const Error& error) {
    why = error.what();
  }
  if (may_be_bare(given)) {
    try {
      if (auto text = bare_text(type, given.text)) return std::move(*text);
    } catch (const Error& error) {  // the text is not base64
      refuse(method, which(method, i) + ": " + error.what());
    }
    if (!json) why = "expected " + readable(type) + ", found " + excerpt(given.text) + ", which is not JSON";
  }
  refuse(method, which(method, i) + (why.starts_with('.') || why.starts_with('[') ? why : ": " + why));
}

std::vector<PlainValue> all_of(const Method& method, const GivenJson& list) {
  std::vector<PlainValue> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    try {
      values.push_back(value_of_json(type_of(method, i), list[i]));
    } catch (const Error& error) {
      const std::string why = error.what();
      refuse(method, which(method, i) + (why.starts_with('.') || why.starts_with('[') ? why : ": " + why));
    }
  }
  return values;
}

bool fits(const Type& type, const GivenJson& json) {
  try {
    (void)value_of_json(type, json);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Whether a list that does not fit the only parameter is probably meant as the value of this parameter, with
// a mistake in it.
bool is_meant(const Method& method, const GivenJson& list) {
  const Type& type = type_of(method, 0);
  if (list.empty()) return type.kind != TypeKind::optional;
  if (list.size() > 1) return true;
  const bool may_be_list = type.kind == TypeKind::list || type.kind == TypeKind::tuple ||
                           type.kind == TypeKind::map || type.kind == TypeKind::tensor;
  return may_be_list && !fits(type, list.front());
}

void check_count(const Method& method, std::size_t given) {
  const std::size_t declared = method.parameters.size();
  bool enough = true;
  // Parameters of operators may have defaults that the listing does not contain. The agent itself reports
  // missing arguments of operators.
  if (!method.info.name.starts_with("aten::"))
    for (std::size_t i = given; i < declared && enough; ++i)
      enough = type_of(method, i).kind == TypeKind::optional;
  if (given <= declared && enough) return;
  refuse(method, method.info.name + " takes " + (declared == 0 ? "no" : std::to_string(declared)) +
                     (declared == 1 ? " argument, " : " arguments, ") + std::to_string(given) +
                     (given == 1 ? " is given" : " are given"));
}

}  // namespace

std::vector<PlainValue> arguments_of(const Method& method, const std::vector<GivenArgument>& given) {
  if (given.size() == 1) {
    // The list of all arguments, or the only argument, which is a list.
    std::optional<GivenJson> list;
    try {
      list = parse_json(given[0].text);
    } catch (const Error&) {
    }
    if (list && list->is_array()) {
      if (method.parameters.size() == 1 && (fits(type_of(method, 0), *list) || is_meant(method, *list)))
        return {argument(method, 0, given[0])};
      check_count(method, list->size());
      return all_of(method, *list);
    }
  }
  check_count(method, given.size());
  std::vector<PlainValue> values;
  for (std::size_t i = 0; i < given.size(); ++i) values.push_back(argument(method, i, given[i]));
  return values;
}

}  // namespace weft::tool
