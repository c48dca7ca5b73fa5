#include "bench/spin/cpu_quota.h"

#include <unistd.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace weft::bench {
namespace {

constexpr long period_us = 100'000;  // the kernel's default

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  if (!out) throw std::runtime_error("cannot write " + file.string());
}

// The cgroup of this process in the hierarchy of cgroup version 1 that limits processor time.
std::filesystem::path own_group_of_version_1() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto names = line.find(':') + 1, path = line.find(':', names) + 1;
    const std::string controllers = "," + line.substr(names, path - 1 - names) + ",";
    if (controllers.find(",cpu,") == std::string::npos) continue;
    return "/sys/fs/cgroup/" + line.substr(names, path - 1 - names) + line.substr(path);
  }
  throw std::runtime_error("no cgroup limits processor time here");
}

}  // namespace

CpuQuota::CpuQuota(double share) {
  const std::filesystem::path root = "/sys/fs/cgroup";
  const bool unified = std::filesystem::exists(root / "cgroup.controllers");
  folder_ = (unified ? root : own_group_of_version_1()) / ("weft_bench_" + std::to_string(getpid()));
  std::error_code error;
  std::filesystem::create_directory(folder_, error);
  if (error) throw std::runtime_error("cannot make " + folder_.string() + ": " + error.message());
  const std::string quota = std::to_string(static_cast<long>(share * period_us));
  if (unified) {
    write(folder_ / "cpu.max", quota + " " + std::to_string(period_us));
  } else {
    write(folder_ / "cpu.cfs_period_us", std::to_string(period_us));
    write(folder_ / "cpu.cfs_quota_us", quota);
  }
}

CpuQuota::~CpuQuota() { rmdir(folder_.c_str()); }

void CpuQuota::add_this_process() const { write(folder_ / "cgroup.procs", std::to_string(getpid())); }

}  // namespace weft::bench
