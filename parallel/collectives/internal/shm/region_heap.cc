#include <weft/parallel/collectives/internal/shm/region_heap.h>

#include <iterator>

namespace weft::collectives {

RegionHeap::RegionHeap(std::size_t begin, std::size_t end) {
  if (begin < end) free_.emplace(begin, end);
}

std::optional<std::size_t> RegionHeap::take(std::size_t bytes) {
  if (bytes > ~std::size_t{0} / 2) return std::nullopt;
  const std::size_t unit = bytes >= page ? page : alignment;
  const std::size_t size = bytes == 0 ? alignment : round_up(bytes, alignment);
  for (auto part = free_.begin(); part != free_.end(); ++part) {
    const std::size_t begin = round_up(part->first, unit);
    if (begin > part->second || part->second - begin < size) continue;
    take_out(part, begin, begin + size);
    return begin;
  }
  return std::nullopt;
}

void RegionHeap::take_out(std::map<std::size_t, std::size_t>::iterator part, std::size_t begin,
                          std::size_t end) {
  const std::size_t last = part->second;
  if (part->first == begin) {
    free_.erase(part);
  } else {
    part->second = begin;
  }
  if (end != last) free_.emplace(end, last);
  used_.emplace(begin, end);
  in_use_ += end - begin;
}

void RegionHeap::give_back(std::size_t begin) {
  const auto used = used_.find(begin);
  std::size_t end = used->second;
  in_use_ -= end - begin;
  used_.erase(used);
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) end = next->second;
  const bool joins = next != free_.begin() && std::prev(next)->second == begin;
  if (next != free_.end() && next->first <= end) free_.erase(next);
  if (joins) {
    const auto before = std::prev(free_.upper_bound(begin));
    before->second = end;
  } else {
    free_.emplace(begin, end);
  }
}

}  // namespace weft::collectives
