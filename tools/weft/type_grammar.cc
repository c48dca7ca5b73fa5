#include "tools/weft/type_grammar.h"

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace weft::tool {
namespace {

// The types that are a single word.
struct Word {
  std::string_view name;
  TypeKind kind;
  std::uint8_t bits = 0;
  bool is_signed = false;
};
constexpr Word words[] = {
    {"bool", TypeKind::boolean},          {"str", TypeKind::text},
    {"bytes", TypeKind::bytes},           {"void", TypeKind::nothing},
    {"tensor", TypeKind::tensor},         {"i8", TypeKind::integer, 8, true},
    {"i16", TypeKind::integer, 16, true}, {"i32", TypeKind::integer, 32, true},
    {"i64", TypeKind::integer, 64, true}, {"u8", TypeKind::integer, 8},
    {"u16", TypeKind::integer, 16},       {"u32", TypeKind::integer, 32},
    {"u64", TypeKind::integer, 64},       {"f32", TypeKind::real, 32, true},
    {"f64", TypeKind::real, 64, true},
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
// The characters of identifiers of C++. Bytes beyond ASCII count as letters.
bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool continues_name(char c) { return begins_name(c) || is_digit(c); }

// A recursive-descent parser with one member function for each rule; `at_` is the next character.
class Parser {
 public:
  Parser(std::string_view text, std::deque<Type>& types) : text_(text), types_(types) {
    if (text.size() > type_limits::text)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "a type of " + std::to_string(text.size()) +
                                                             " bytes: the limit is " +
                                                             std::to_string(type_limits::text));
  }

  const Type* type() {
    if (++open_types_ > type_limits::levels)
      fail("types nested too deeply: the limit is " + std::to_string(type_limits::levels) + " levels");
    Type* found = plain();
    while (take("?")) found = make(TypeKind::optional, {found});
    --open_types_;
    return found;
  }

  void end() {
    if (at_ != text_.size()) fail("expected the end, found " + here());
  }

 private:
  Type* plain() {
    if (take("[")) {
      const Type* element = type();
      expect("]");
      return make(TypeKind::list, {element});
    }
    if (take("{")) {
      const Type* key = type();
      expect(":");
      const Type* value = type();
      expect("}");
      return make(TypeKind::map, {key, value});
    }
    if (take("(")) return make(TypeKind::tuple, list_until(",", ")"));
    if (take("<")) {
      std::vector<const Type*> alternatives = list_until("|", ">");
      if (alternatives.empty()) fail("a variant without alternatives");
      return make(TypeKind::variant, alternatives);
    }
    return named();
  }

  Type* named() {
    const std::size_t start = at_;
    const std::string_view name = take_name();
    if (peek('{')) return record(std::string(name));
    if (peek('(')) {
      if (name == "enum") return enumeration();
      if (name == "capnp") return capnp();
    }
    if (name == "rref" && take("<")) {
      const Type* object = type();
      expect(">");
      return make(TypeKind::reference, {object});
    }
    if (peek('<')) {  // the name of a template instance
      skip_brackets();
      const std::string_view whole = text_.substr(start, at_ - start);
      return peek('{') ? record(std::string(whole)) : by_name(whole);
    }
    for (const Word& word : words)
      if (word.name == name) {
        Type* type = make(word.kind, {});
        type->bits = word.bits;
        type->is_signed = word.is_signed;
        return type;
      }
    return by_name(name);
  }

  Type* record(std::string name) {
    expect("{");
    Type* record = make(TypeKind::record, {});
    record->name = std::move(name);
    open_.push_back(record);
    if (!take("}")) {
      do {
        record->fields.emplace_back(take_identifier());
        expect(":");
        add_part(*record, type());
      } while (take(","));
      expect("}");
    }
    open_.pop_back();
    return record;
  }

  Type* by_name(std::string_view name) {
    for (auto outer = open_.rbegin(); outer != open_.rend(); ++outer)
      if ((*outer)->name == name) {
        Type* type = make(TypeKind::recursion, {*outer});
        type->name = name;
        return type;
      }
    Type* type = make(TypeKind::word, {});
    type->name = name;
    return type;
  }

  Type* enumeration() {
    expect("(");
    const Type* number = type();
    if (number->kind != TypeKind::integer && number->kind != TypeKind::boolean)
      fail("expected an integer type for an enum");
    expect(")");
    return make(TypeKind::enumeration, {number});
  }

  Type* capnp() {
    expect("(");
    std::uint64_t id = 0;
    const char* first = text_.data() + at_;
    const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), id);
    if (error != std::errc{}) fail("expected a schema's id, found " + here());
    at_ += static_cast<std::size_t>(end - first);
    expect(")");
    Type* type = make(TypeKind::capnp, {});
    type->id = id;
    return type;
  }

  std::vector<const Type*> list_until(std::string_view separator, std::string_view end) {
    std::vector<const Type*> all;
    if (take(end)) return all;
    do {
      all.push_back(type());
    } while (take(separator));
    expect(end);
    return all;
  }

  // A name: identifiers that are separated by "::" (in the name of a struct), "." or "-" (in the name of a
  // service).
  std::string_view take_name() {
    const std::size_t start = at_;
    if (text_.substr(at_).starts_with("::")) at_ += 2;
    take_identifier();
    for (;;) {
      const std::size_t joint = text_.substr(at_).starts_with("::") ? 2 : peek('.') || peek('-') ? 1 : 0;
      if (joint == 0 || at_ + joint >= text_.size() || !continues_name(text_[at_ + joint])) break;
      at_ += joint;
      while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    }
    return text_.substr(start, at_ - start);
  }
  std::string_view take_identifier() {
    const std::size_t start = at_;
    if (at_ >= text_.size() || !begins_name(text_[at_])) fail("expected a type or a name, found " + here());
    while (at_ < text_.size() && continues_name(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  void skip_brackets() {
    std::size_t open = 0;
    do {
      if (at_ >= text_.size()) fail("'<' without '>'");
      if (text_[at_] == '<') ++open;
      if (text_[at_] == '>') --open;
      ++at_;
    } while (open != 0);
  }

  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void expect(std::string_view what) {
    if (!take(what)) fail("expected '" + std::string(what) + "', found " + here());
  }
  std::string here() const {
    return at_ < text_.size() ? "'" + std::string(text_.substr(at_, 1)) + "'" : "the end";
  }

  [[noreturn]] void fail(const std::string& what) const {
    constexpr std::size_t shown = 60;
    const std::size_t from = at_ > shown / 2 ? at_ - shown / 2 : 0;
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "not a type, at byte " + std::to_string(at_) + ": " +
                                                           what + ": " + (from > 0 ? "…" : "") +
                                                           std::string(text_.substr(from, shown)) +
                                                           (from + shown < text_.size() ? "…" : ""));
  }

  Type* make(TypeKind kind, const std::vector<const Type*>& parts) {
    if (types_.size() >= type_limits::types)
      fail("too many types: the limit is " + std::to_string(type_limits::types));
    Type& type = types_.emplace_back();
    type.kind = kind;
    for (const Type* part : parts) add_part(type, part);
    return &type;
  }
  void add_part(Type& type, const Type* part) {
    type.parts.push_back(part);
    if (type.kind == TypeKind::recursion) return;
    type.levels = std::max(type.levels, static_cast<std::uint16_t>(part->levels + 1));
    if (type.levels > type_limits::levels)
      fail("types nested too deeply: the limit is " + std::to_string(type_limits::levels) + " levels");
  }

  std::string_view text_;
  std::deque<Type>& types_;
  std::size_t at_ = 0;
  std::size_t open_types_ = 0;
  std::vector<Type*> open_;  // records that enclose the current position, the innermost last
};

// How a type is written.
struct Form {
  std::string_view comma, colon, bar;
  bool fields;  // false: a record is written as its name only
};
constexpr Form canonical{",", ":", "|", true}, for_users{", ", ": ", " | ", false};

void append(std::string& out, const Form& form, const Type& type) {
  const auto append_parts = [&](std::string_view open, std::string_view separator, std::string_view close) {
    out += open;
    for (std::size_t i = 0; i < type.parts.size(); ++i) {
      if (i != 0) out += separator;
      if (type.kind == TypeKind::record) {
        out += type.fields[i];
        out += form.colon;
      }
      append(out, form, *type.parts[i]);
    }
    out += close;
  };
  switch (type.kind) {
    case TypeKind::list:
      return append_parts("[", "", "]");
    case TypeKind::map:
      return append_parts("{", form.colon, "}");
    case TypeKind::optional:
      return append_parts("", "", "?");
    case TypeKind::tuple:
      return append_parts("(", form.comma, ")");
    case TypeKind::variant:
      return append_parts("<", form.bar, ">");
    case TypeKind::enumeration:
      return append_parts("enum(", "", ")");
    case TypeKind::reference:
      return append_parts("rref<", "", ">");
    case TypeKind::capnp:
      out += "capnp(" + std::to_string(type.id) + ')';
      return;
    case TypeKind::recursion:
    case TypeKind::word:
      out += type.name;
      return;
    case TypeKind::record:
      out += type.name;
      if (form.fields) append_parts("{", form.comma, "}");
      return;
    default:
      for (const Word& word : words)
        if (word.kind == type.kind && word.bits == type.bits && word.is_signed == type.is_signed)
          out += word.name;
  }
}

std::string text_in(const Form& form, const Type& type) {
  std::string out;
  append(out, form, type);
  return out;
}

}  // namespace

ParsedType ParsedType::parse(std::string_view text) {
  ParsedType parsed;
  Parser parser(text, parsed.types_);
  parsed.root_ = parser.type();
  parser.end();
  return parsed;
}

std::string text_of(const Type& type) { return text_in(canonical, type); }
std::string readable(const Type& type) { return text_in(for_users, type); }

}  // namespace weft::tool
