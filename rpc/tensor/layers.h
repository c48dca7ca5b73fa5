// The tensor layer of an agent. Handlers get their own LibTorch thread state (thread_state.h); LibTorch's
// exceptions reach the caller without a backtrace; tensors on accelerators are sent according to device maps
// (device_options.h). Tensors on the CPU can be sent without the layer, too, but then handlers inherit the
// state of their thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/device_options.h>

namespace weft::tensor {

// The agent's constructor throws invalid_argument if this process does not have the devices of the options.
WEFT_EXPORT rpc::Layers layers(DeviceOptions devices = {});

}  // namespace weft::tensor
