// Crowd: additional server processes, each on its own cores. They die with this process.
//
// The processes are forked, so this process must not have started a thread. Thread-safety: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace weft::bench {

// Runs serve(i, announce) in `count` processes, numbered from 0. Each process announces its address once and
// serves until it is killed. Returns the addresses when all processes have announced theirs. Throws
// std::runtime_error if a process exits before that.
std::vector<std::string> fork_crowd(
    std::size_t count,
    const std::function<void(std::size_t, const std::function<void(const std::string&)>&)>& serve);

}  // namespace weft::bench
