// OwnerStats: counters of the owner of one object's parameters (owned_parameters.h). A value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <map>

namespace weft::dist_optim {

// Counters since the creation of the OwnedParameters. The numbers of passes and live versions are the present
// ones.
struct WEFT_EXPORT OwnerStats {
  std::uint64_t version = 0;                         // steps that changed the parameters
  std::map<std::uint64_t, std::uint64_t> staleness;  // number of steps by their staleness
  std::size_t open_passes = 0;
  std::size_t waiting_passes = 0;
  std::size_t live_versions = 0;
  std::uint64_t copied_bytes = 0;   // by copying on write, in total
  std::uint64_t version_loads = 0;  // number of times that another version was loaded for a reader

  // The largest staleness of a step and the mean over all steps. A step's staleness is the number of steps
  // between the version that its oldest pass read and the version that it changed.
  std::uint64_t max_staleness() const { return staleness.empty() ? 0 : staleness.rbegin()->first; }
  double mean_staleness() const;
};

}  // namespace weft::dist_optim
