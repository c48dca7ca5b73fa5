#include <weft/rref/protocol/number_set.h>

#include <algorithm>
#include <iterator>

namespace weft::rref::protocol {

bool NumberSet::contains(std::uint64_t number) const {
  auto after = ranges_.upper_bound(number);
  return after != ranges_.begin() && number <= std::prev(after)->second;
}

bool NumberSet::insert(std::uint64_t number) {
  if (contains(number)) return false;
  auto after = ranges_.upper_bound(number);
  // `number` is strictly between its neighbours, so neither sum below can wrap.
  const bool joins_after = after != ranges_.end() && after->first == number + 1;
  const bool joins_before = after != ranges_.begin() && std::prev(after)->second + 1 == number;
  const std::uint64_t last = joins_after ? after->second : number;
  if (joins_before) {
    std::prev(after)->second = last;
  } else {
    ranges_.emplace(number, last);
  }
  if (joins_after) ranges_.erase(after);
  return true;
}

void NumberSet::insert_below(std::uint64_t number) {
  if (number == 0) return;
  std::uint64_t last = number - 1;
  auto after = ranges_.begin();
  while (after != ranges_.end() &&
         (after->first == 0 || after->first - 1 <= last)) {  // within it, or adjacent to it
    last = std::max(last, after->second);
    after = ranges_.erase(after);
  }
  ranges_.emplace(0, last);
}

void NumberSet::keep_latest(std::size_t ranges) {
  while (ranges_.size() > ranges) ranges_.erase(ranges_.begin());
}

}  // namespace weft::rref::protocol
