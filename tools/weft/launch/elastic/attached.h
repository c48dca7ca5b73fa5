// run_attached(): runs one worker for the driver of an elastic job on another host (remote.h).
//
// The worker ends, with the grace time, when standard input ends: the driver asks for it so, and the
// connection to a driver that is gone ends too. Nothing but what the worker prints is printed.
#pragma once

#include <string>
#include <vector>

#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {

// Of a supervisor of this one worker. Its name is WEFT_NAME.
SupervisorOptions attached_options(const std::vector<std::string>& command, const std::string& grace);

// The worker's exit status, or 128 and its signal. Throws UsageError if the program cannot be run.
int run_attached(const std::vector<std::string>& command, const std::string& grace);

}  // namespace weft::tool::launch::elastic
