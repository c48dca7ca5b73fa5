// NumberSet: a set of numbers that remembers ranges, so that a dense set costs one range
// however many it holds.
//
// It is how an agent remembers which births it has settled: births are numbered densely, therefore the ranges
// are one more than the gaps, and a gap is a birth that is still under way. Nothing is forgotten, yet memory
// stays small. Thread-safety: none; a plain value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace weft::rref::protocol {

class WEFT_EXPORT NumberSet {
 public:
  bool insert(std::uint64_t number);        // false: it was there
  void insert_below(std::uint64_t number);  // all that are smaller
  bool contains(std::uint64_t number) const;
  std::size_t ranges() const { return ranges_.size(); }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first -> last, disjoint and never adjacent
};

}  // namespace weft::rref::protocol
