// The methods that carry the messages between the tables of agents (messages.h), and the method that fetches
// the value of an RRef. They are ordinary served methods; RRefLayer::send sends the messages.
#pragma once

#include <weft/rref/rref_layer.h>

namespace weft::rref {

// All methods run on the loop, because each needs only a table look-up.
struct WEFT_EXPORT ProtocolService {
  // The owner registers a fork.
  protocol::Standing fork_add(rpc::CallContext& call, protocol::ForkAdd message);
  // Returns the results in the order of the messages.
  std::vector<protocol::Standing> fork_deletes(rpc::CallContext& call,
                                               std::vector<protocol::ForkDelete> messages);
  protocol::Standing fork_fence(rpc::CallContext& call, protocol::ForkFence message);
  protocol::ProbeReply fork_probe(rpc::CallContext& call, protocol::ForkProbe message);
  void child_settled(rpc::CallContext& call, protocol::ChildSettled message);
  void creation_failed(rpc::CallContext& call, protocol::CreationFailed message);

  // The caller considers this agent's incarnation gone, and has ended all references between the two agents.
  void taken_for_gone(rpc::CallContext& call);

  using Service = rpc::Service<
      "weft.rref", rpc::Method<"fork_add", &ProtocolService::fork_add, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_deletes", &ProtocolService::fork_deletes, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_fence", &ProtocolService::fork_fence, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_probe", &ProtocolService::fork_probe, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"child_settled", &ProtocolService::child_settled, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"taken_for_gone", &ProtocolService::taken_for_gone, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"creation_failed", &ProtocolService::creation_failed, rpc::idempotent, rpc::non_blocking>>;

  // The layer whose tables answer the messages.
  std::shared_ptr<RRefLayer> layer;
};

// Makes the service of `layer` callable by peers.
void serve_protocol(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer);

}  // namespace weft::rref
