// guarded(): runs the launcher in a process below this one, so that neither can die and leave something
// behind.
//
// The process that the user started (the front) does nothing but pass signals on and wait. The one below has
// the workers. Each is a subreaper: where the one below dies, by whatever signal, the front finds all that it
// had started among its own descendants and kills it; where the front dies, the kernel sends the one below
// SIGTERM, on which it ends the workers as it does on Ctrl-C. Only SIGKILL for both at the same time leaves
// something: workers themselves die with the process that started them (PR_SET_PDEATHSIG), what they have
// started does not.
#pragma once

#include <functional>

namespace weft::tool::launch {

// Called by the main thread of a process that has no other yet. Returns the exit status: that of `body`, or
// 128 and the signal that killed it. `body` runs on the main thread of its process, in a process group of its
// own, with the signals as this process had them.
int guarded(const std::function<int()>& body);

}  // namespace weft::tool::launch
