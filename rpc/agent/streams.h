// The part of streams (rpc/stream/) in every agent: it is installed when the agent is made.
#pragma once

#include <weft/rpc/agent/agent_core.h>

namespace weft::rpc {

WEFT_EXPORT void install_streams(const std::shared_ptr<AgentCore>& core);

}  // namespace weft::rpc
