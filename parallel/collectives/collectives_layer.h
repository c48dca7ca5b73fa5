// layer(): the layer of an agent that has process groups (group.h).
#pragma once

#include <weft/parallel/collectives/nccl/devices_options.h>
#include <weft/rpc/agent/agent.h>

namespace weft::collectives {

// The layer of collectives. It needs no other layer. devices: how NCCL is found.
WEFT_EXPORT rpc::Layer layer(nccl::DevicesOptions devices = {});

}  // namespace weft::collectives
