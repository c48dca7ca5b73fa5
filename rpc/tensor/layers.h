// The tensor layer of an agent: handlers get their own LibTorch thread state (thread_state.h), and what
// LibTorch throws in them reaches the caller without its backtrace. Tensors travel without it too, but then
// handlers inherit whatever state their thread is in.
#pragma once

#include <weft/rpc/agent/agent.h>

namespace weft::tensor {

WEFT_EXPORT rpc::Layers layers();

}  // namespace weft::tensor
