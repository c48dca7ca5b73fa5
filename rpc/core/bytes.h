// put_at(), take_at(): a number in bytes, little-endian, at any offset. Thread-safety: functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>

namespace weft::rpc {

static_assert(std::endian::native == std::endian::little, "weft's wire code assumes a little-endian machine");

// Writes the number to the bytes at the offset. Neither function checks that the bytes suffice.
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
