// The cores that this process may use. Thread-safety: none needed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool::launch {

// The numbers of the processors that the system lets this process run on, hardware threads of one core side
// by side, so that a run of them is a run of whole cores.
std::vector<unsigned> own_cores();

// How many of them may be busy at a time: fewer where a control group has a quota, as containers do.
std::size_t own_processors(std::size_t cores);

// The processors for each worker, if `workers` of them share this host equally; at least 1.
std::size_t threads_share(std::size_t workers);

// Of cgroup v2's cpu.max, "150000 100000": 2. None: "max", or what is no such text.
std::optional<std::size_t> processors_of_quota(const std::string& cpu_max);

}  // namespace weft::tool::launch
