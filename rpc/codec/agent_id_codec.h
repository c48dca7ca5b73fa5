// An AgentId as an argument, result or field: its name and incarnation. Thread-safety: values.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/agent_id.h>

namespace weft::rpc {

WEFT_CODEC(AgentId, name, incarnation)

}  // namespace weft::rpc
