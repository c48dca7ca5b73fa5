// CpuQuota: a cgroup that limits the processor time of the processes in it, removed with the object.
// Thread-safety: none.
#pragma once

#include <sys/types.h>

#include <filesystem>

namespace weft::bench {

class CpuQuota {
 public:
  // share: the limit, as a part of one core. Throws std::runtime_error if no cgroup can be made.
  explicit CpuQuota(double share);
  ~CpuQuota();
  CpuQuota(const CpuQuota&) = delete;
  CpuQuota& operator=(const CpuQuota&) = delete;

  void add_this_process() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace weft::bench
