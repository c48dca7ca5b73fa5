// The tensor layer of an agent: handlers get their own LibTorch thread state (thread_state.h), and what
// LibTorch throws in them reaches the caller without its backtrace, and tensors on accelerators travel by
// device maps (device_options.h). Tensors of the CPU travel without it too, but then handlers inherit
// whatever state their thread is in.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/device_options.h>

namespace weft::tensor {

// The agent's constructor throws invalid_argument where its device options cannot be met here.
WEFT_EXPORT rpc::Layers layers(DeviceOptions devices = {});

}  // namespace weft::tensor
