// run_processes(): runs this program once per rank on this host.
//
// Each process has the variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as from_environment() reads
// them, and OMP_NUM_THREADS=1 if OMP_NUM_THREADS is not set. Each process inherits the standard input and
// outputs. The processes die with this process, even if this process is killed. `weft launch` does more:
// roles, several hosts, output by rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace weft::rpc::detail {

// Returns 0 if all processes have ended with status 0, otherwise the status of the first failure: the exit
// status of a process, or 128 plus the number of the signal that has killed it. After the first failure the
// other processes have 5 s to end before they are killed. If this process receives SIGINT, SIGTERM or SIGHUP,
// it sends SIGTERM to the processes, and the signal counts as a failure (128 plus its number). The failure is
// printed after all processes have ended. Call it while this process has one thread, because it forks. Throws
// std::system_error if a system call fails.
int run_processes(std::size_t processes, const std::vector<std::string>& arguments);

}  // namespace weft::rpc::detail
