// ThreadState: LibTorch's thread-local state (grad mode, autocast, …) of one served call.
//
// A handler starts with the default state, with grad mode on in a pass and off otherwise, regardless of its
// thread and of the caller's state. Changes by the handler persist across its suspensions and do not leak to
// the thread. A ContextSwitch of the call; see executor.h for its thread-safety.
#pragma once

#include <weft/rpc/core/executor.h>

#include <memory>

namespace weft::tensor {

// The state in which a handler starts.
WEFT_EXPORT std::unique_ptr<rpc::ContextSwitch> make_thread_state(bool grad_mode);

}  // namespace weft::tensor
