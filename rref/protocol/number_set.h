// NumberSet: a set of numbers that is stored as ranges, so that a dense set needs one range, whatever its
// size.
//
// An agent stores the births that it has settled in such a set. Births are numbered densely, so the number of
// ranges is one more than the number of gaps, and a gap is a birth that is still in flight. The set forgets a
// number only in keep_latest(), and its memory stays small. Thread-safety: none; a plain value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace weft::rref::protocol {

class WEFT_EXPORT NumberSet {
 public:
  bool insert(std::uint64_t number);                     // false: the number was in the set
  void insert_below(std::uint64_t number);               // inserts all smaller numbers
  void keep_latest(std::size_t ranges);                  // forgets all but this number of highest ranges
  bool contains(std::uint64_t number) const;             // whether the number is in the set
  std::size_t ranges() const { return ranges_.size(); }  // the memory of the set, in ranges

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first -> last, disjoint and never adjacent
};

}  // namespace weft::rref::protocol
