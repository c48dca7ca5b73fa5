// RegionHeap: allocates parts of a region.
//
// First fit by address, so that touched memory is used again before untouched memory. Pure bookkeeping: it
// accesses no memory. Parts start at multiples of 64 bytes; parts of a page and more start at pages. Not
// thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <map>
#include <optional>

namespace weft::collectives {

class WEFT_EXPORT RegionHeap {
 public:
  static constexpr std::size_t alignment = 64, page = 4096;
  // Rounds up to a multiple of `unit`.
  static constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
  }

  RegionHeap(std::size_t begin, std::size_t end);  // multiples of a page

  std::optional<std::size_t> take(std::size_t bytes);  // returns the offset; none: no part is large enough
  void give_back(std::size_t begin);                   // the result of take()
  std::size_t in_use() const { return in_use_; }       // bytes

 private:
  void take_out(std::map<std::size_t, std::size_t>::iterator part, std::size_t begin, std::size_t end);

  std::map<std::size_t, std::size_t> free_, used_;  // begin -> end
  std::size_t in_use_ = 0;
};

}  // namespace weft::collectives
