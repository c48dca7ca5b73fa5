// Ids of passes, and of the messages of a pass whose tensors get gradients. They are unique over all agents.
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
  std::uint64_t number = 0;  // the agent numbers its passes from 1
  friend auto operator<=>(const PassId&, const PassId&) = default;
};
WEFT_CODEC(PassId, origin, number)

// A message whose tensors require grad. The sender has a SendBackward for the message, and the receiver has a
// RecvBackward.
struct MessageId {
  std::uint64_t sender = 0;  // the sender's incarnation
  std::uint64_t number = 0;
  friend auto operator<=>(const MessageId&, const MessageId&) = default;
};
WEFT_CODEC(MessageId, sender, number)

WEFT_EXPORT std::string to_string(const PassId& id);  // "pass 3f2a9c04:17"

}  // namespace weft::dist_autograd
