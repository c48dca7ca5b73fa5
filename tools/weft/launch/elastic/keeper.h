// run_keeper(): runs one worker for a driver that may die, until another driver takes over.
//
// The keeper outlives the driver that has started it. The two talk by the job's store alone (takeover.h), so
// that a driver that takes over finds all keepers there. The keeper ends its worker if the driver orders it,
// if for `orphan_wait` no driver has had the lease, and if the keeper's own lease has ended: the driver takes
// the worker for lost then, and another worker may have its place. While the store cannot be reached, the
// worker continues.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace weft::tool::launch::elastic {

struct KeeperOptions {
  std::string store;   // file:///path or etcd://host:port/prefix
  std::string worker;  // "JOB/ID"
  std::chrono::nanoseconds orphan_wait = std::chrono::minutes{1};
  std::vector<std::string> command;
  std::string grace;
  std::string logs;  // a folder; empty: the output goes to standard output, and is lost if nobody reads that
};

// Call before the process has children: from here on it does not die with the driver.
void outlive_the_driver();

// The worker's exit status, or 128 and its signal. Throws UsageError, rpc::Error.
int run_keeper(const KeeperOptions& options);

}  // namespace weft::tool::launch::elastic
