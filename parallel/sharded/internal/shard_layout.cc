#include <weft/parallel/sharded/internal/shard_layout.h>

#include <algorithm>

namespace weft::sharded {
namespace {

std::int64_t aligned(std::int64_t elements) {
  constexpr std::int64_t alignment = 16;
  return (elements + alignment - 1) / alignment * alignment;
}

}  // namespace

ShardLayout::ShardLayout(std::span<const std::int64_t> elements, int ranks)
    : slices(static_cast<std::size_t>(ranks)) {
  std::int64_t end = 0;
  for (const std::int64_t count : elements) {
    offsets.push_back(end);
    end += aligned(count);
  }
  part = aligned((end + ranks - 1) / ranks);
  for (std::size_t rank = 0; rank < slices.size(); ++rank) {
    const std::int64_t from = part * static_cast<std::int64_t>(rank);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::int64_t first = std::max(from, offsets[i]);
      const std::int64_t last = std::min(from + part, offsets[i] + elements[i]);
      if (first < last) slices[rank].push_back({i, first - offsets[i], last - offsets[i], first - from});
    }
  }
}

}  // namespace weft::sharded
