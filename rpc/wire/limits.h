// Limits: what an agent accepts from a peer. Each is checked before the memory that it bounds is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::rpc {

struct Limits {
  std::uint64_t message = std::uint64_t{16} << 30;  // bytes of one frame's attachments together
  std::uint32_t header = 64U << 20;                 // bytes of one frame's header
  std::uint32_t segments = 64;                      // Cap'n Proto segments of a header
  std::uint32_t attachments = 4096;                 // of one frame
  std::uint32_t nesting = 64;                       // levels of a header; a value within a value takes two
  std::uint64_t in_flight = std::uint64_t{32}
                            << 30;  // bytes of received frames that handlers hold, per connection
};

}  // namespace weft::rpc
