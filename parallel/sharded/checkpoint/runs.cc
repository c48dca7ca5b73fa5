#include <weft/parallel/sharded/checkpoint/runs.h>

#include <algorithm>

namespace weft::sharded {

Runs Runs::all(std::int64_t elements) {
  const std::int64_t length = std::max<std::int64_t>(elements, 1);
  return {0, length, length};
}

bool Runs::fit(std::int64_t elements) const {
  return first >= 0 && length >= 1 && length <= distance && first <= distance - length &&
         elements % distance == 0;
}

std::int64_t Runs::position_from(std::int64_t element) const {
  if (element <= first) return 0;
  const std::int64_t run = (element - first) / distance, within = (element - first) % distance;
  return run * length + std::min(within, length);
}

std::vector<SharedElements> shared_elements(const Runs& to, Positions in_to, const Runs& from,
                                            Positions in_from) {
  std::vector<SharedElements> all;
  for (std::int64_t at = in_to.first; at < in_to.second;) {
    const std::int64_t element = to.element(at);
    const std::int64_t left = std::min(to.length - at % to.length, in_to.second - at);  // of this run
    const std::int64_t position = std::max(from.position_from(element), in_from.first);
    if (position >= in_from.second) break;
    const std::int64_t next = from.element(position);
    if (next >= element + left) {
      at = to.position_from(next);
      continue;
    }
    at += next - element;
    const std::int64_t count =
        std::min({element + left - next, from.length - position % from.length, in_from.second - position});
    if (!all.empty() && all.back().to + all.back().count == at &&
        all.back().from + all.back().count == position) {
      all.back().count += count;
    } else {
      all.push_back({at, position, count});
    }
    at += count;
  }
  return all;
}

std::vector<SharedElements> take_shared(const Runs& to, std::vector<Positions>& wanted, const Runs& from,
                                        Positions in_from) {
  std::vector<Positions> left;
  std::vector<SharedElements> here;
  for (const auto& [begin, end] : wanted) {
    std::int64_t next = begin;
    for (const SharedElements& each : shared_elements(to, {begin, end}, from, in_from)) {
      if (next < each.to) left.emplace_back(next, each.to);
      next = each.to + each.count;
      here.push_back(each);
    }
    if (next < end) left.emplace_back(next, end);
  }
  wanted = std::move(left);
  return here;
}

}  // namespace weft::sharded
