// HostStats: counters of the host of one object's parameters (parameter_host.h). A value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace weft::dist_optim {

// Counters since the host was made; passes and versions are those of now.
struct WEFT_EXPORT HostStats {
  std::uint64_t version = 0;                         // steps that changed the parameters
  std::map<std::uint64_t, std::uint64_t> staleness;  // number of steps by their staleness
  std::size_t open_passes = 0;
  std::size_t waiting_passes = 0;
  std::size_t live_versions = 0;
  std::uint64_t copied_bytes = 0;  // by copying on write, in total
  std::uint64_t version_loads =
      0;  // number of times that a reader needed another version than the previous one

  // Steps between the version that a step's passes have read and the newest one.
  std::uint64_t max_staleness() const { return staleness.empty() ? 0 : staleness.rbegin()->first; }
  double mean_staleness() const;
};

}  // namespace weft::dist_optim
