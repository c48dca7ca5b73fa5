// The processes below this one, and their end.
//
// The caller is a subreaper (PR_SET_CHILD_SUBREAPER): whatever its children have started stays below it when
// they end, also what has left their process group and session. So a look at /proc finds all of them.
// Thread-safety: one thread of a process at a time.
#pragma once

#include <sys/types.h>

#include <vector>

namespace weft::tool::launch {

void become_subreaper();

// That run or are stopped; not those that have ended and only wait to be asked for their status.
std::vector<pid_t> descendants();

// Kills and reaps all descendants. Blocks until none is left.
void kill_descendants();

}  // namespace weft::tool::launch
