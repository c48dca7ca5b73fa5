// Partition: selects which of n owners keeps the row of an id. A pure function.
//
// Jump consistent hash (Lamping and Veach 2014, "A Fast, Minimal Memory, Consistent Hash Algorithm") over a
// mixed id. Owners 0 … n-1 get equal shares. When owner n is added, 1/(n+1) of the ids move, all of them to
// n.
#pragma once

#include <weft/rpc/core/split_mix.h>

#include <cstdint>

namespace weft::dist_optim {

// owners: at least 1.
constexpr std::uint32_t owner_of(std::int64_t id, std::uint32_t owners) {
  std::uint64_t key = rpc::split_mix(static_cast<std::uint64_t>(id) + rpc::split_mix_step);
  std::int64_t owner = 0, next = 0;
  while (next < static_cast<std::int64_t>(owners)) {
    owner = next;
    key = key * 2862933555777941757ull + 1;
    next = static_cast<std::int64_t>(static_cast<double>(owner + 1) *
                                     (static_cast<double>(1ll << 31) / static_cast<double>((key >> 33) + 1)));
  }
  return static_cast<std::uint32_t>(owner);
}

}  // namespace weft::dist_optim
