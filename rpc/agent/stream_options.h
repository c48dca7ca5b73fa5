// StreamOptions: how much of its streams an agent keeps in memory (rpc/stream/stream.h). Plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::rpc {

// What may be under way to a reader, or wait for it, before its stream's source has to wait. The item that
// reaches the limit of bytes may exceed it.
struct StreamWindow {
  std::uint64_t items = 256;
  std::uint64_t bytes = std::uint64_t{16} << 20;
};

struct StreamOptions {
  StreamWindow window;  // of each stream that is read here; and the most that one served here keeps
  std::size_t max_per_peer = 1024;  // streams served to one peer at a time; more are resource_exhausted
};

}  // namespace weft::rpc
