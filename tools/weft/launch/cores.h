// Functions that find the cores that this process may use. Thread-safety: functions without state.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool::launch {

// The numbers of the processors on which the system lets this process run. The hardware threads of one core
// are adjacent, so that a range of the list consists of whole cores.
std::vector<unsigned> own_cores();

// The number of processors that may be busy at the same time. A quota of the control group (as in containers)
// may be smaller than the number of processors.
std::size_t own_processors(std::size_t cores);

// The number of processors for each worker if `workers` workers share this host equally; at least 1.
std::size_t threads_share(std::size_t workers);

// The number of processors that cgroup v2's cpu.max permits, rounded up: 2 for "150000 100000". nullopt: the
// text is "max", or malformed.
std::optional<std::size_t> processors_of_quota(const std::string& cpu_max);

}  // namespace weft::tool::launch
