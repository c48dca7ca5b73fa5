// dist_optim::layers(): the layers of an agent that trains, or that owns parameters.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/device_options.h>

namespace weft::dist_optim {

// The layers of distributed optimizers and L-BFGS, with the layers that they need (autograd, RRefs, tensors).
WEFT_EXPORT rpc::Layers layers(tensor::DeviceOptions devices = {});

}  // namespace weft::dist_optim
