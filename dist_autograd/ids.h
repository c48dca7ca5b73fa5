// Ids of passes and of the messages within them that carry gradients back. Unique over all agents.
// Thread-safety: values.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>

#include <compare>
#include <cstdint>
#include <string>

namespace weft::dist_autograd {

// A pass.
struct PassId {
  std::uint64_t origin = 0;  // incarnation of the agent that made the pass
  std::uint64_t number = 0;  // of the agent's passes
  friend auto operator<=>(const PassId&, const PassId&) = default;
};
WEFT_CODEC(PassId, origin, number)

// A message whose tensors require grad. Its SendBackward is at its sender, its RecvBackward at its receiver.
struct MessageId {
  std::uint64_t sender = 0;  // incarnation
  std::uint64_t number = 0;
  friend auto operator<=>(const MessageId&, const MessageId&) = default;
};
WEFT_CODEC(MessageId, sender, number)

WEFT_EXPORT std::string to_string(const PassId& id);  // "pass 3f2a9c04:17"

}  // namespace weft::dist_autograd
