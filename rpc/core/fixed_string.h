// FixedString: a string as a template argument, and the 64-bit hash of names and signatures on the wire.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft::rpc {

template <std::size_t N>
struct FixedString {
  char text[N]{};
  consteval FixedString(const char (&literal)[N]) {
    std::copy_n(literal, N, text);
  }  // NOLINT: implicit on purpose
  constexpr std::string_view view() const { return {text, N - 1}; }  // without the terminating zero
};

// FNV-1a, 64 bits: identifies a method and a signature on the wire (docs/internals/wire_protocol.md).
constexpr std::uint64_t name_hash(std::string_view text, std::uint64_t hash = 0xcbf29ce484222325ULL) {
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace weft::rpc
