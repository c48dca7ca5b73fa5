// The methods by which agents keep each other's tables (messages.h), and by which the value of an RRef is
// fetched. Ordinary served methods; the messages are sent by Context::send.
#pragma once

#include <weft/rref/context.h>

namespace weft::rref {

// On the loop: every one is a table look-up.
struct WEFT_EXPORT ProtocolService {
  protocol::Standing fork_add(rpc::CallContext& call, protocol::ForkAdd message);
  protocol::Standing fork_delete(rpc::CallContext& call, protocol::ForkDelete message);
  protocol::Standing fork_fence(rpc::CallContext& call, protocol::ForkFence message);
  protocol::ProbeReply fork_probe(rpc::CallContext& call, protocol::ForkProbe message);
  void child_settled(rpc::CallContext& call, protocol::ChildSettled message);
  void creation_failed(rpc::CallContext& call, protocol::CreationFailed message);

  using Service = rpc::Service<
      "weft.rref", rpc::Method<"fork_add", &ProtocolService::fork_add, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_delete", &ProtocolService::fork_delete, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_fence", &ProtocolService::fork_fence, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"fork_probe", &ProtocolService::fork_probe, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"child_settled", &ProtocolService::child_settled, rpc::idempotent, rpc::non_blocking>,
      rpc::Method<"creation_failed", &ProtocolService::creation_failed, rpc::idempotent, rpc::non_blocking>>;

  std::shared_ptr<Context> context;
};

void serve_protocol(rpc::AgentCore& core, const std::shared_ptr<Context>& context);

}  // namespace weft::rref
