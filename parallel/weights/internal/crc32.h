// The CRC-32 of zip files, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::weights {

std::uint32_t crc32_of(const std::byte* data, std::uint64_t bytes);

}  // namespace weft::weights
