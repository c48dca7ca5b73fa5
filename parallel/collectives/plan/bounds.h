// Bounds: at which sizes collectives that send messages change their ways. docs/collectives.md has what was
// measured for the defaults, and `./dev bench collectives --cases algorithm` measures again.
#pragma once

#include <cstddef>

namespace weft::collectives {

struct Bounds {
  std::size_t small_bytes = 64 << 10;     // up to which rounds cost more than bytes
  std::size_t message_bytes = 256 << 10;  // of one message, at most
  std::size_t ahead_bytes = 512 << 10;    // that a rank sends before all have agreed, at most
  std::size_t ring_bytes = 1 << 20;       // of a rank's block, from which on large reductions go round a ring
  friend bool operator==(const Bounds&, const Bounds&) = default;
};

}  // namespace weft::collectives
