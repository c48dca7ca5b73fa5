// The CRC-32 of zip files, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace weft::weights {

// The checksum of bytes that `block` returns part by part: it is called with the number of the part's first
// byte and the size of the part, at most 1 MiB, by several threads and in any order.
std::uint32_t crc32_of(std::uint64_t bytes,
                       const std::function<const std::byte*(std::uint64_t begin, std::size_t size)>& block);

inline std::uint32_t crc32_of(const std::byte* data, std::uint64_t bytes) {
  return crc32_of(bytes, [data](std::uint64_t begin, std::size_t) { return data + begin; });
}

}  // namespace weft::weights
