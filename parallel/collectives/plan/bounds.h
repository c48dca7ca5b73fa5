// Bounds: the sizes at which collectives by messages change the algorithm. docs/internals/collectives.md has
// the measurements for the defaults; `./dev bench collectives --cases algorithm` repeats them.
#pragma once

#include <cstddef>

namespace weft::collectives {

struct Bounds {
  std::size_t small_bytes = 64 << 10;     // up to this size, algorithms with few rounds are faster
  std::size_t message_bytes = 256 << 10;  // maximum size of one message
  std::size_t ahead_bytes = 512 << 10;    // maximum size that a rank sends before all ranks have agreed
  std::size_t ring_bytes = 1 << 20;       // minimum size of a rank's block for which reductions use a ring
  friend bool operator==(const Bounds&, const Bounds&) = default;
};

}  // namespace weft::collectives
