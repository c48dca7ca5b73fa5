// BulkRange: the range of the sizes of attachments that do not travel in the stream (BulkAccess). The default
// is the empty range.
#pragma once

#include <cstddef>
#include <limits>

namespace weft::rpc {

struct BulkRange {
  static constexpr std::size_t no_end = std::numeric_limits<std::size_t>::max();

  std::size_t begin = no_end, end = no_end;  // bytes
  // `end` is not part of the range.
  bool contains(std::size_t size) const { return size >= begin && size < end; }
  friend bool operator==(const BulkRange&, const BulkRange&) = default;
};

}  // namespace weft::rpc
