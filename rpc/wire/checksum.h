// crc32c(): CRC-32C (Castagnoli), as in iSCSI and ext4. It is the checksum of a frame's prefix and header.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::rpc {

// Continues `seed`: crc32c(b, crc32c(a)) is the checksum of a followed by b.
WEFT_EXPORT std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

namespace detail {
WEFT_EXPORT std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t seed);  // for tests
}

}  // namespace weft::rpc
