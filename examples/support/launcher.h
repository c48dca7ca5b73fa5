// launch(): runs this program once per rank on this machine, and ends everything when one of them fails.
//
// What `weft launch` or torchrun would do for a real job, in one readable file: every process gets RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as rpc::from_environment() reads them, and the program's own
// arguments. What they print is passed on line by line. A line that ends in '\r' instead of '\n' is a
// process's status (a progress bar): on a terminal the latest of each stays at the bottom. No process
// outlives the launcher.
#pragma once

#include <string>
#include <vector>

namespace examples {

struct Launch {
  std::vector<std::string> names;      // of the ranks, for messages
  std::vector<std::string> arguments;  // of every process
};

// Returns the exit status for main: 0 if all have ended well. Otherwise prints which process failed first,
// and how. To be called while this process has one thread.
int launch(const Launch& job);

}  // namespace examples
