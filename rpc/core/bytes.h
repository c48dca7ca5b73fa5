// Numbers in bytes, little-endian, at any offset.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace weft::rpc {

static_assert(std::endian::native == std::endian::little, "weft's wire code assumes a little-endian machine");

// Writes the number to the bytes at the offset. Does not check that the bytes suffice, like take_at().
template <class T>
void put_at(std::span<std::byte> out, std::size_t offset, const T& value) {
  std::memcpy(out.data() + offset, &value, sizeof value);
}
// Reads a number from the bytes at the offset.
template <class T>
T take_at(std::span<const std::byte> in, std::size_t offset) {
  T value;
  std::memcpy(&value, in.data() + offset, sizeof value);
  return value;
}

}  // namespace weft::rpc
