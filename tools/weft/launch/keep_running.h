// keep_running(): runs the processes of a service, and restarts each one that fails.
//
// A worker that ends with a failure (an exit status other than 0, or a signal) is started again after a wait,
// with the same rank, name and environment. Its process group has ended before. The other workers go on. A
// worker that exits with status 0 is not restarted. Blacklist decides about the waits: each worker has the
// place of a host there, and each failure is a cooldown. So the waits double, have jitter and a maximum, and
// are short again if the worker has run for `healthy_after`. Thread-safety: call it on the main thread.
#pragma once

#include <cstddef>
#include <optional>

#include "tools/weft/launch/elastic/blacklist.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch {

struct KeepRunningOptions {
  elastic::BlacklistOptions waits;  // failures: 1; cooldown: the first wait, not 0
  // The number of restarts of one worker in a row. The next failure of this worker ends all workers. nullopt:
  // unlimited.
  std::optional<std::size_t> max_restarts;
};

// Returns the exit status of the launcher: 0 if all workers have exited with status 0, otherwise the status
// of the worker that has reached max_restarts, or 128 plus the number of the signal that ended the launcher.
// Throws UsageError or system_error if a worker does not start the first time.
int keep_running(SupervisorOptions supervised, const KeepRunningOptions& options);

}  // namespace weft::tool::launch
