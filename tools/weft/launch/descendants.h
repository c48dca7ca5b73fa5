// Functions that find and kill the descendants of this process.
//
// The caller is a subreaper (PR_SET_CHILD_SUBREAPER): if a child ends, the processes that it has started
// remain descendants of the caller, even if they have left its process group and session. So /proc lists all
// descendants. Thread-safety: one thread of a process at a time.
#pragma once

#include <sys/types.h>

#include <vector>

namespace weft::tool::launch {

void become_subreaper();

// The descendants that run or are stopped, without zombies.
std::vector<pid_t> descendants();

// Kills and reaps all descendants. Blocks until none is left.
void kill_descendants();

}  // namespace weft::tool::launch
