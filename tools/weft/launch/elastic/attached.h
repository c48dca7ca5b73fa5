// run_attached(): runs one worker for the driver of an elastic job on another host (remote.h).
//
// When standard input ends, run_attached() ends the worker, with the grace time. Standard input ends if the
// driver closes it to end the worker, or if the driver or the connection is lost. run_attached() prints only
// the output of the worker.
#pragma once

#include <string>
#include <vector>

#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {

// The options of the supervisor of this one worker, whose name is WEFT_NAME.
SupervisorOptions attached_options(const std::vector<std::string>& command, const std::string& grace);

// Returns the worker's exit status, or 128 plus the number of its signal. Throws UsageError if the program
// cannot be run.
int run_attached(const std::vector<std::string>& command, const std::string& grace);

}  // namespace weft::tool::launch::elastic
