// Crowd: additional server processes, each on its own cores. They die with this process.
//
// The processes are forked, so this process must not have started a thread. Thread-safety: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace weft::bench {

// Runs serve(i, announce) in `count` processes, i from 0: it announces its address once, and serves until it
// is killed. Gives the addresses when all have. Throws std::runtime_error where one dies before it has.
std::vector<std::string> fork_crowd(
    std::size_t count,
    const std::function<void(std::size_t, const std::function<void(const std::string&)>&)>& serve);

}  // namespace weft::bench
