#include <weft/rpc/core/error.h>
#include <weft/rpc/job/store/base64.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>

#include "tools/weft/dtype.h"
#include "tools/weft/json_forms.h"
#include "tools/weft/json_tensor.h"
#include "tools/weft/json_value.h"

namespace weft::tool {
namespace {

using rpc::Error;
using rpc::ErrorKind;

constexpr std::size_t max_value_levels = 100;  // of nested values; a message has fewer levels
// Limits of the search for the alternatives of variants: the number of values that are examined, and the
// number of conversions that failed.
constexpr std::size_t max_guesses = 20'000'000, max_wrong_guesses = 4000;

constexpr std::string_view too_much =
    "too many possible alternatives: state them as {\"index\": …, \"value\": …}";

// The position of a value within the argument: a list from the innermost value to the outermost one.
struct JsonPath {
  const JsonPath* outer = nullptr;
  std::string_view field = {};
  std::size_t index = 0;
  bool is_field = false;

  std::string text() const {
    if (outer == nullptr) return "";
    const bool plain = std::all_of(field.begin(), field.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '_' || c >= 0x80;
    });
    if (is_field && plain) return outer->text() + "." + std::string(field);
    return outer->text() + "[" + (is_field ? excerpt(GivenJson(field)) : std::to_string(index)) + "]";
  }
};
JsonPath in(const JsonPath& outer, std::string_view field) { return {&outer, field, 0, true}; }
JsonPath in(const JsonPath& outer, std::size_t index) { return {&outer, {}, index, false}; }

[[noreturn]] void fail(const JsonPath& path, const std::string& what) {
  const std::string where = path.text();
  throw Error(ErrorKind::invalid_argument, where.empty() ? what : where + ": " + what);
}
[[noreturn]] void mismatch(const Type& type, const GivenJson& json, const JsonPath& path,
                           const std::string& as = {}) {
  fail(path,
       "expected " + (as.empty() ? "" : as + " ") + excerpt(text_of(type)) + ", found " + excerpt(json));
}
template <class F>
auto at(const JsonPath& path, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    fail(path, error.what());
  }
}

class Converter {
 public:
  PlainValue convert(const Type& type, const GivenJson& json, const JsonPath& path, std::size_t level) {
    if (level > max_value_levels) fail(path, "nested too deeply");
    if (guessing_ != 0) ++guesses_;
    if (guessed_enough()) fail(path, std::string(too_much));
    switch (type.kind) {
      case TypeKind::recursion:
        return convert(*type.parts[0], json, path, level);
      case TypeKind::boolean:
        if (!json.is_boolean()) mismatch(type, json, path);
        return {json.get<bool>()};
      case TypeKind::integer:
        return integer(type, json, path);
      case TypeKind::enumeration:
        return convert(*type.parts[0], json, path, level);
      case TypeKind::real:
        return {real(type, json, path)};
      case TypeKind::text:
        if (json.is_string()) return {json.get<std::string>()};
        if (const auto bytes = tagged_bytes(json, path))
          return {std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())};
        mismatch(type, json, path);
      case TypeKind::bytes:
        return {PlainBytes{rpc::Buffer::copy(bytes(type, json, path))}};
      case TypeKind::nothing:
        if (!json.is_null()) mismatch(type, json, path);
        return {};
      case TypeKind::list:
        return list(*type.parts[0], type, json, path, level);
      case TypeKind::tuple:
        return tuple(type, json, path, level);
      case TypeKind::map:
        return map(type, json, path, level);
      case TypeKind::optional:
        return optional(*type.parts[0], json, path, level);
      case TypeKind::variant:
        return variant(type, json, path, level);
      case TypeKind::record:
        return record(type, json, path, level);
      case TypeKind::tensor:
        return at(path, [&] { return tensor_from_json(json); });
      case TypeKind::reference:
      case TypeKind::capnp:
      case TypeKind::word:
        fail(path, "a value of type " + excerpt(text_of(type)) + " cannot be written in JSON");
    }
    fail(path, "an unknown type");
  }

 private:
  static PlainValue integer(const Type& type, const GivenJson& json, const JsonPath& path) {
    const std::string name = text_of(type);
    const unsigned unused = 64U - type.bits;
    return at(path, [&]() -> PlainValue {
      if (!type.is_signed) return {natural_of(json, ~std::uint64_t{0} >> unused, name)};
      const std::int64_t most = std::numeric_limits<std::int64_t>::max() >> unused;
      return {integer_of(json, -most - 1, most, name)};
    });
  }

  static double real(const Type& type, const GivenJson& json, const JsonPath& path) {
    if (!json.is_number() && !json.is_string()) mismatch(type, json, path);
    const double value = at(path, [&] { return real_of(json, text_of(type)); });
    if (type.bits == 32 && std::isfinite(value) && !std::isfinite(static_cast<float>(value)))
      mismatch(type, json, path);
    return type.bits == 32 ? static_cast<double>(static_cast<float>(value)) : value;
  }

  // {"base64": "…"}
  static std::optional<std::vector<std::byte>> tagged_bytes(const GivenJson& json, const JsonPath& path) {
    if (!json.is_object()) return std::nullopt;
    if (json.contains("elided"))
      fail(path, "some of these bytes were elided, expected all: print them with --max 0");
    if (json.size() != 1) return std::nullopt;
    const auto found = json.find("base64");
    if (found == json.end() || !found->is_string()) return std::nullopt;
    auto bytes = rpc::detail::from_base64(found->get_ref<const std::string&>());
    if (!bytes) fail(path, "malformed base64: " + excerpt(*found));
    return bytes;
  }

  static std::vector<std::byte> bytes(const Type& type, const GivenJson& json, const JsonPath& path) {
    if (auto bytes = tagged_bytes(json, path)) return std::move(*bytes);
    if (!json.is_string()) mismatch(type, json, path, "base64");
    auto bytes = rpc::detail::from_base64(json.get_ref<const std::string&>());
    if (!bytes) fail(path, "malformed base64: " + excerpt(json));
    return std::move(*bytes);
  }

  // Numbers are packed in the same way as by Codec<std::vector<T>>.
  PlainValue list(const Type& element, const Type& type, const GivenJson& json, const JsonPath& path,
                  std::size_t level) {
    if (!json.is_array()) mismatch(type, json, path);
    if (element.kind == TypeKind::real && element.bits == 64) {
      std::vector<double> reals;
      for (const GivenJson& one : json) reals.push_back(real(element, one, in(path, reals.size())));
      return {std::move(reals)};
    }
    if (element.kind == TypeKind::real) {
      std::vector<float> floats;
      for (const GivenJson& one : json)
        floats.push_back(static_cast<float>(real(element, one, in(path, floats.size()))));
      return {std::move(floats)};
    }
    if (element.kind == TypeKind::integer && element.is_signed) {
      std::vector<std::int64_t> ints;
      for (const GivenJson& one : json)
        ints.push_back(std::get<std::int64_t>(integer(element, one, in(path, ints.size())).held));
      return {std::move(ints)};
    }
    PlainList list;
    for (const GivenJson& one : json)
      list.elements.push_back(convert(element, one, in(path, list.elements.size()), level + 1));
    return {std::move(list)};
  }

  PlainValue tuple(const Type& type, const GivenJson& json, const JsonPath& path, std::size_t level) {
    if (!json.is_array() || json.size() != type.parts.size())
      mismatch(type, json, path, "a list of " + std::to_string(type.parts.size()) + " as");
    PlainList list;
    for (std::size_t i = 0; i < type.parts.size(); ++i)
      list.elements.push_back(convert(*type.parts[i], json[i], in(path, i), level + 1));
    return {std::move(list)};
  }

  PlainValue map(const Type& type, const GivenJson& json, const JsonPath& path, std::size_t level) {
    const Type &key = *type.parts[0], &value = *type.parts[1];
    PlainMap map;
    if (json.is_object()) {
      for (const auto& [name, one] : json.items()) {
        const JsonPath here = in(path, name);
        map.entries.emplace_back(convert(key, key_json(key, name, here), here, level + 1),
                                 convert(value, one, here, level + 1));
      }
      return {std::move(map)};
    }
    if (!json.is_array()) mismatch(type, json, path);
    std::set<std::string> keys;
    for (std::size_t i = 0; i < json.size(); ++i) {
      const JsonPath here = in(path, i);
      if (!json[i].is_array() || json[i].size() != 2)
        fail(here, "expected [key, value], found " + excerpt(json[i]));
      if (!keys.insert(on_one_line(json[i][0])).second)
        fail(here, "the key " + excerpt(json[i][0]) + " occurs twice");
      map.entries.emplace_back(convert(key, json[i][0], in(here, 0), level + 1),
                               convert(value, json[i][1], in(here, 1), level + 1));
    }
    return {std::move(map)};
  }
  // Keys of JSON objects are texts. A key of another type is JSON within this text.
  static GivenJson key_json(const Type& key, const std::string& name, const JsonPath& path) {
    if (key.kind == TypeKind::text || key.kind == TypeKind::bytes) return name;
    try {
      return parse_json(name);
    } catch (const Error&) {
      fail(path, "expected a key of type " + excerpt(text_of(key)));
    }
  }

  PlainValue optional(const Type& inner, const GivenJson& json, const JsonPath& path, std::size_t level) {
    if (json.is_null()) return {};
    PlainVariant present{1, {}};
    if (prints_null(inner) && is_alternative(json) && json["index"] == 1) {
      present.value.push_back(convert(inner, json["value"], in(path, "value"), level + 1));
    } else {
      present.value.push_back(convert(inner, json, path, level + 1));
    }
    return {std::move(present)};
  }

  // {"index": i, "value": …}, or a value without index, which selects the first alternative that it fits.
  PlainValue variant(const Type& type, const GivenJson& json, const JsonPath& path, std::size_t level) {
    if (is_alternative(json)) {
      const std::size_t index = at(in(path, "index"), [&] {
        return static_cast<std::size_t>(natural_of(json["index"], 65535, "an alternative's number"));
      });
      if (index >= type.parts.size())
        fail(path, "there is no alternative " + std::to_string(index) + " in " + excerpt(text_of(type)));
      PlainVariant held{index, {}};
      held.value.push_back(convert(*type.parts[index], json["value"], in(path, "value"), level + 1));
      return {std::move(held)};
    }
    std::string why;
    ++guessing_;
    for (std::size_t i = 0; i < type.parts.size(); ++i) {
      if (!may_fit(*type.parts[i], json)) continue;
      try {
        PlainVariant held{i, {}};
        held.value.push_back(convert(*type.parts[i], json, path, level + 1));
        --guessing_;
        return {std::move(held)};
      } catch (const Error& error) {
        ++wrong_guesses_;
        if (guessed_enough()) fail(path, std::string(too_much));
        why = error.what();
      }
    }
    --guessing_;
    // If several alternatives failed, the error contains only the last reason, so that it is short.
    if (!why.empty()) throw Error(ErrorKind::invalid_argument, why);
    mismatch(type, json, path);
  }

  PlainValue record(const Type& type, const GivenJson& json, const JsonPath& path, std::size_t level) {
    if (!json.is_object()) mismatch(type, json, path);
    PlainRecord record;
    std::size_t known = 0;
    for (std::size_t i = 0; i < type.parts.size(); ++i) {
      const std::string& name = type.fields[i];
      const auto found = json.find(name);
      if (found == json.end()) continue;
      ++known;
      record.fields.emplace_back(name, convert(*type.parts[i], *found, in(path, name), level + 1));
    }
    if (known < json.size())
      for (const auto& [name, value] : json.items())
        if (std::find(type.fields.begin(), type.fields.end(), name) == type.fields.end()) {
          std::string fields;
          for (const std::string& field : type.fields) fields += (fields.empty() ? "" : ", ") + field;
          fail(path, type.name + " has no field " + excerpt(GivenJson(name)) +
                         (fields.empty() ? "" : ": it has " + fields));
        }
    return {std::move(record)};
  }

  // --- Which alternative ---

  bool guessed_enough() const { return guesses_ > max_guesses || wrong_guesses_ > max_wrong_guesses; }
  // A quick test. If it returns false, the JSON does not fit the type.
  static bool may_fit(const Type& type, const GivenJson& json) {
    switch (type.kind) {
      case TypeKind::boolean:
        return json.is_boolean();
      case TypeKind::integer:
      case TypeKind::enumeration:
        return json.is_number() || json.is_boolean();
      case TypeKind::real:
        return json.is_number() || json.is_string();
      case TypeKind::text:
      case TypeKind::bytes:
        return json.is_string() || json.is_object();
      case TypeKind::nothing:
        return json.is_null();
      case TypeKind::list:
      case TypeKind::tuple:
        return json.is_array();
      case TypeKind::map:
        return json.is_structured();
      case TypeKind::record:
      case TypeKind::recursion:
        return json.is_object();
      case TypeKind::tensor:
        return !json.is_string();
      case TypeKind::optional:
        return json.is_null() || may_fit(*type.parts[0], json);
      case TypeKind::variant:
        return true;
      default:
        return false;
    }
  }

  std::size_t guessing_ = 0;  // the number of enclosing variants whose alternative is being searched
  std::size_t guesses_ = 0, wrong_guesses_ = 0;
};

}  // namespace

PlainValue value_of_json(const Type& type, const GivenJson& json) {
  return Converter().convert(type, json, JsonPath{}, 1);
}

}  // namespace weft::tool
