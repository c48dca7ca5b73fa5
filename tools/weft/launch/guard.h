// guarded(): runs the launcher in a child process, so that no process remains if either of the two dies.
//
// The process that the user started (the front) only forwards signals and waits. Its child (the launcher)
// runs the workers. Both are subreapers. If the launcher dies by any signal, the front finds all processes
// that it had started among its own descendants, and kills them. If the front dies, the kernel sends SIGTERM
// to the launcher, which then ends the workers as on Ctrl-C. Processes remain only if both get SIGKILL at the
// same time: the workers die with the launcher (PR_SET_PDEATHSIG), but processes that the workers have
// started do not.
#pragma once

#include <functional>

namespace weft::tool::launch {

// Call it on the main thread of a process that has no other thread. Returns the exit status: the result of
// `body`, or 128 plus the number of the signal that killed its process. `body` runs on the main thread of the
// child process, in its own process group, with the signal settings that this process had.
int guarded(const std::function<int()>& body);

}  // namespace weft::tool::launch
