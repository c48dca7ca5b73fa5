#include <weft/rpc/core/log.h>

#include <cstdio>

namespace weft::rpc {
namespace {

// The size of the character at the beginning; 0: invalid UTF-8, or a control character of terminals.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  std::uint32_t code = first & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid = code >= least[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  const bool controls = code < 0xa0 || (code >= 0x200b && code <= 0x200f) ||
                        (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f);
  return valid && !controls ? size : 0;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = character(text);
    if (size != 0) {
      out += text.substr(0, size);
    } else if (text.front() == '\n') {
      out += "\n    ";
    } else {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(text.front()));
      out += code;
    }
    text.remove_prefix(size != 0 ? size : 1);
  }
  return out;
}

}  // namespace weft::rpc
