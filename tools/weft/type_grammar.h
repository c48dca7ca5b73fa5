// ParsedType: a type as a tree, parsed from its canonical text (docs/internals/wire_protocol.md, 4), which
// TypeText writes.
//
//   const ParsedType quote = ParsedType::parse("Quote{symbol:str,price:f64?}");
//   quote->parts[1]->kind;                       // TypeKind::optional
//
// The text may come from a peer: its length, depth and number of types are limited, and a malformed text
// throws invalid_argument with the position. text_of() returns the canonical text of a tree. A Type lives as
// long as the ParsedType that contains it. Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tool {

enum class TypeKind : std::uint8_t {
  boolean,
  integer,      // bits, is_signed
  real,         // bits
  text,         // str
  bytes,        //
  nothing,      // void
  list,         // [T]: parts[0]
  map,          // {K:V}: parts[0], parts[1]
  optional,     // T?: parts[0]
  tuple,        // (A,B): parts
  variant,      // <A|B>: parts, at least one
  enumeration,  // enum(i32): parts[0] is an integer
  record,       // Name{field:T}: name, fields, parts
  recursion,    // Name within Name{…}: parts[0] is that record
  capnp,        // capnp(ID): id
  tensor,       //
  reference,    // rref<T>: parts[0]
  word,         // any other name: a type of a higher layer, or a record without a list of fields
};

struct Type {
  TypeKind kind = TypeKind::nothing;
  std::uint8_t bits = 0;
  bool is_signed = false;
  std::uint16_t levels = 1;  // nesting depth, including this type, without following recursions
  std::uint64_t id = 0;
  std::string name;                 // the name of a record, a recursion or a word
  std::vector<std::string> fields;  // the names of the fields of a record, one for each of `parts`
  std::vector<const Type*> parts;   // never null
};

namespace type_limits {
// Texts that exceed these limits are refused.
inline constexpr std::size_t text = 1U << 20;  // bytes
inline constexpr std::size_t types = 1U << 16;
inline constexpr std::size_t levels = 100;
}  // namespace type_limits

// A type, and all types within it.
class ParsedType {
 public:
  // text: a single type.
  static ParsedType parse(std::string_view text);
  ParsedType(ParsedType&&) noexcept = default;  // its types keep their addresses
  ParsedType& operator=(ParsedType&&) noexcept = default;

  const Type& operator*() const { return *root_; }
  const Type* operator->() const { return root_; }

 private:
  ParsedType() = default;
  std::deque<Type> types_;
  const Type* root_ = nullptr;
};

// Returns the canonical text.
std::string text_of(const Type& type);
// Returns a text for users: the canonical text with blanks, and with structs by name only.
std::string readable(const Type& type);

}  // namespace weft::tool
