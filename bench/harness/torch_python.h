// Peers in Python: scripts of this source tree. They are run by a Python that can import torch:
// $WEFT_TORCH_PYTHON, or the Python of .venv. The scripts may import the modules next to this file.
// Thread-safety: functions without state.
#pragma once

#include "bench/harness/pair.h"
#include "bench/harness/ranks.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace weft::bench {

// For Channel::become(). script: "ddp/torch_peer.py".
std::vector<std::string> torch_command(const std::string& script, const std::vector<std::string>& arguments);

// Formats the time for an argument of a script.
std::string seconds(std::chrono::nanoseconds time);

// The server and the client become the script, with the arguments "serve" WORDS... STORE, and "measure"
// WORDS... STORE WARM_UP DURATION.
Pair torch_pair(const std::string& script, const std::vector<std::string>& words);

// Starts a process for each rank. The process becomes the script, with the arguments RANK RANKS STORE WARM_UP
// DURATION followed by the given arguments (torch_ranks.py). prepare: called in each process before it
// becomes the script.
Outcome measure_torch_ranks(
    int ranks, const Setting& setting, const std::string& script, const std::vector<std::string>& arguments,
    const std::function<void(int rank)>& prepare = [](int) {});

}  // namespace weft::bench
