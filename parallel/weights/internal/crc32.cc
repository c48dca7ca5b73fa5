#include <weft/parallel/weights/internal/crc32.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace weft::weights {
namespace {

// LibTorch's own, which it neither exports nor declares inline.
#include <caffe2/serialize/crc_alt.h>

constexpr std::int64_t crc_part = std::int64_t{8} << 20;

}  // namespace

std::uint32_t crc32_of(const std::byte* data, std::uint64_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes), parts = (size + crc_part - 1) / crc_part;
  std::vector<std::uint32_t> crcs(static_cast<std::size_t>(parts));
  const auto bytes_of = [&](std::int64_t part) {
    return static_cast<std::size_t>(std::min(crc_part, size - part * crc_part));
  };
  at::parallel_for(0, parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part != last; ++part)
      crcs[static_cast<std::size_t>(part)] = crc32_fast(data + part * crc_part, bytes_of(part));
  });
  std::uint32_t crc = 0;
  for (std::int64_t part = 0; part != parts; ++part)
    crc = crc32_combine(crc, crcs[static_cast<std::size_t>(part)], bytes_of(part));
  return crc;
}

}  // namespace weft::weights
