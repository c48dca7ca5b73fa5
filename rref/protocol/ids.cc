#include <weft/rref/protocol/ids.h>

#include <cstdio>

namespace weft::rref {

namespace {

std::string hex_pair(std::uint64_t origin, std::uint64_t number) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx:%016llx", static_cast<unsigned long long>(origin),
                static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

std::string to_string(const RRefId& id) { return hex_pair(id.origin, id.number); }
std::string to_string(const ForkId& id) { return hex_pair(id.origin, id.number); }

}  // namespace weft::rref
