#include <weft/rpc/job/store/base64.h>
#include <weft/rpc/wire/message.h>

#include <algorithm>

#include "tools/weft/dtype.h"
#include "tools/weft/json_forms.h"
#include "tools/weft/json_tensor.h"
#include "tools/weft/json_value.h"

namespace weft::tool {
namespace {

using rpc::ValueKind;
using rpc::ValueReader;

// Whether the text is valid UTF-8. JSON must be UTF-8, but a text on the wire may contain any bytes.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80                    ? 1
                               : lead >= 0xc2 && lead <= 0xdf ? 2
                               : (lead & 0xf0) == 0xe0        ? 3
                               : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                              : 0;
    if (length == 0 || text.size() - i < length) return false;
    for (std::size_t j = 1; j < length; ++j)
      if ((static_cast<unsigned char>(text[i + j]) & 0xc0) != 0x80) return false;
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
      return false;
    i += length;
  }
  return true;
}

class Printer {
 public:
  Printer(std::size_t most, std::uint64_t budget) : most_(most), budget_(budget) {}

  PrintedJson print(const ValueReader& value, const Type* type) {
    while (type != nullptr && type->kind == TypeKind::recursion) type = type->parts[0];
    switch (value.kind()) {
      case ValueKind::nil:
        return nullptr;
      case ValueKind::boolean:
        return value.get_bool();
      case ValueKind::int_:
        return value.get_int();
      case ValueKind::uint:
        return value.get_uint();
      case ValueKind::real:
        return is_float(type) ? real_json(static_cast<float>(value.get_real())) : real_json(value.get_real());
      case ValueKind::text:
        return text(value.get_text());
      case ValueKind::bytes:
        return bytes(value.get_bytes());
      case ValueKind::attachment:
        return bytes(value.get_attachment().bytes());
      case ValueKind::list:
        return list(value, type);
      case ValueKind::ints:
        return numbers(value, [&](std::size_t i) -> PrintedJson { return value.int_at(i); });
      case ValueKind::reals:
        return numbers(value, [&](std::size_t i) { return real_json(value.real_at(i)); });
      case ValueKind::floats:
        return numbers(value, [&](std::size_t i) { return real_json(static_cast<float>(value.real_at(i))); });
      case ValueKind::record:
        return record(value, type);
      case ValueKind::map:
        return map(value, type);
      case ValueKind::variant:
        return variant(value, type);
      case ValueKind::object: {
        PrintedJson json;
        add_field(json, "capnp", value.object_type());
        return json;
      }
    }
    return nullptr;
  }

 private:
  static bool is_float(const Type* type) {
    return type != nullptr && type->kind == TypeKind::real && type->bits == 32;
  }
  static bool is(const Type* type, TypeKind kind) { return type != nullptr && type->kind == kind; }

  static PrintedJson text(std::string_view text) {
    if (is_utf8(text)) return text;
    PrintedJson json;
    add_field(json, "base64", rpc::detail::to_base64(std::as_bytes(std::span(text))));
    return json;
  }
  PrintedJson bytes(std::span<const std::byte> bytes) {
    spend(budget_, bytes.size());
    PrintedJson json;
    add_field(json, "base64", rpc::detail::to_base64(bytes.first(std::min(bytes.size(), most_))));
    if (bytes.size() > most_) add_field(json, "elided", bytes.size() - most_);
    return json;
  }

  template <class F>
  static PrintedJson numbers(const ValueReader& value, F&& number) {
    PrintedJson json = PrintedJson::array();
    for (std::size_t i = 0, n = value.size(); i < n; ++i) json.push_back(number(i));
    return json;
  }

  PrintedJson list(const ValueReader& value, const Type* type) {
    const std::size_t n = value.size();
    PrintedJson json = PrintedJson::array();
    for (std::size_t i = 0; i < n; ++i) {
      const Type* element = is(type, TypeKind::list)                              ? type->parts[0]
                            : is(type, TypeKind::tuple) && i < type->parts.size() ? type->parts[i]
                                                                                  : nullptr;
      json.push_back(print(value.at(i), element));
    }
    return json;
  }

  PrintedJson record(const ValueReader& value, const Type* type) {
    if (type == nullptr || type->kind == TypeKind::tensor)
      if (auto tensor = tensor_to_json(value, most_, budget_)) return std::move(*tensor);
    PrintedJson json = PrintedJson::object();
    for (std::size_t i = 0, n = value.size(); i < n; ++i) {
      const std::string_view name = value.field_name(i);
      const Type* part = nullptr;
      if (is(type, TypeKind::record)) {
        const auto found = i < type->fields.size() && type->fields[i] == name
                               ? type->fields.begin() + static_cast<std::ptrdiff_t>(i)
                               : std::find(type->fields.begin(), type->fields.end(), name);
        if (found != type->fields.end())
          part = type->parts[static_cast<std::size_t>(found - type->fields.begin())];
      }
      add_field(json, std::string(name), print(value.field_at(i), part));
    }
    return json;
  }

  // An object if every key is a text in UTF-8; otherwise [[key, value], …].
  PrintedJson map(const ValueReader& value, const Type* type) {
    const Type* key_type = is(type, TypeKind::map) ? type->parts[0] : nullptr;
    const Type* value_type = is(type, TypeKind::map) ? type->parts[1] : nullptr;
    const std::size_t n = value.size();
    bool texts = n != 0 || key_type == nullptr || key_type->kind == TypeKind::text;
    for (std::size_t i = 0; i < n && texts; ++i) {
      const ValueReader key = value.map_key(i);
      texts = key.kind() == ValueKind::text && is_utf8(key.get_text());
    }
    PrintedJson json = texts ? PrintedJson::object() : PrintedJson::array();
    for (std::size_t i = 0; i < n; ++i) {
      PrintedJson held = print(value.map_value(i), value_type);
      if (texts) {
        add_field(json, std::string(value.map_key(i).get_text()), std::move(held));
      } else {
        json.push_back(PrintedJson::array({print(value.map_key(i), key_type), std::move(held)}));
      }
    }
    return json;
  }

  PrintedJson variant(const ValueReader& value, const Type* type) {
    const std::size_t index = value.variant_index();
    const Type* held = nullptr;
    if (is(type, TypeKind::optional) && index == 1) {
      held = type->parts[0];
      PrintedJson json = print(value.variant_value(), held);
      if (!json.is_null() && !(prints_null(*held) && is_alternative(json))) return json;
    } else if (is(type, TypeKind::variant) && index < type->parts.size()) {
      held = type->parts[index];
    }
    PrintedJson json;
    add_field(json, "index", index);
    add_field(json, "value", print(value.variant_value(), held));
    return json;
  }

  const std::size_t most_;
  std::uint64_t budget_;
};

}  // namespace

PrintedJson json_of_value(const ValueReader& value, const Type* type, std::size_t most) {
  // The budget permits every attachment at least once. It is limited because a message may refer to one
  // attachment many times.
  const std::uint64_t budget = 2 * value.message().bytes() + (1U << 20);
  return Printer(most, budget).print(value, type);
}

}  // namespace weft::tool
