// In-place collectives: the permitted location of a rank's part within the memory of the whole tensor.
//
// all_gather and gather have the part as input and the whole as output; reduce_scatter and scatter the
// reverse. Pure.
#pragma once

#include <cstddef>

namespace weft::collectives {

// The memory of a tensor. 0 bytes: it overlaps nothing.
struct MemorySpan {
  const std::byte* data;
  std::size_t bytes;
};

// Whether they share no byte, or the part is at `own`, this rank's part of the whole; null: none.
inline bool apart_or_in_place(MemorySpan whole, MemorySpan part, const std::byte* own) {
  return whole.bytes == 0 || part.bytes == 0 || part.data + part.bytes <= whole.data ||
         whole.data + whole.bytes <= part.data || part.data == own;
}

}  // namespace weft::collectives
