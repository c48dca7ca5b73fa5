#include "tools/weft/launch/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <tuple>

namespace weft::tool::launch {
namespace {

int topology(unsigned core, const char* what) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/" + what);
  int number = 0;
  return file >> number ? number : -1;
}

}  // namespace

std::vector<unsigned> own_cores() {
  // A system may have more processors than a cpu_set_t, and the kernel refuses a set that is too small.
  for (std::size_t most = 1024; most <= 65536; most *= 2) {
    cpu_set_t* const set = CPU_ALLOC(most);
    const std::size_t size = CPU_ALLOC_SIZE(most);
    const bool known = ::sched_getaffinity(0, size, set) == 0;
    std::vector<std::tuple<int, int, unsigned>> found;
    for (unsigned core = 0; known && core < most; ++core)
      if (CPU_ISSET_S(core, size, set))
        found.emplace_back(topology(core, "physical_package_id"), topology(core, "core_id"), core);
    CPU_FREE(set);
    if (!known) continue;
    std::sort(found.begin(), found.end());
    std::vector<unsigned> cores;
    for (const auto& [package, core, number] : found) cores.push_back(number);
    return cores;
  }
  return {};
}

std::optional<std::size_t> processors_of_quota(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  std::uint64_t quota = 0, period = 0;
  if (!(text >> quota >> period) || quota == 0 || period == 0) return std::nullopt;
  return (quota + period - 1) / period;
}

std::size_t own_processors(std::size_t cores) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string line;
  std::getline(file, line);
  return std::max<std::size_t>(1, std::min(cores, processors_of_quota(line).value_or(cores)));
}

std::size_t threads_share(std::size_t workers) {
  return std::max<std::size_t>(1, own_processors(own_cores().size()) / std::max<std::size_t>(1, workers));
}

}  // namespace weft::tool::launch
