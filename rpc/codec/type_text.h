// TypeText: writes a type in the canonical grammar (docs/internals/wire_protocol.md). The text does not
// depend on the compiler.
//
//   bool i8…i64 u8…u64 f32 f64 str bytes | [T] | {K:V} | T? | (A,B) | <A|B> | enum(i32) | Name{field:T,…} |
//   void | words of codecs in higher layers (tensor, rref<T>)
//
// If a struct contains itself, the inner occurrence is written as its name only. Thread-safety: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

class TypeText {
 public:
  TypeText& operator<<(std::string_view text) {
    text_ += text;
    return *this;
  }
  // Begins a struct, whose fields and close() follow. false: the struct contains itself; its name was
  // written, and fields and close() must not follow.
  bool open(std::string_view name) {
    text_ += name;
    for (const auto& outer : open_)
      if (outer == name) return false;
    open_.emplace_back(name);
    return true;
  }
  void close() { open_.pop_back(); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::vector<std::string> open_;
};

}  // namespace weft::rpc
