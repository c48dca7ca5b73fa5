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

}  // namespace

CpuQuota::CpuQuota(double share) {
  const std::filesystem::path root = "/sys/fs/cgroup";
  const bool unified = std::filesystem::exists(root / "cgroup.controllers");
  folder_ = (unified ? root : root / "cpu") / ("weft_bench_" + std::to_string(getpid()));
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
