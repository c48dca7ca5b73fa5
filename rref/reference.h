// Reference: one handle's grip on a remote object, or on one of this agent's own. What an RRef<T> shares
// among copies.
//
// Made by the Context only. Its end is the handle's end: the fork is released, or the owner's hold.
// Thread-safe.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace weft::rref {

class Context;

class WEFT_EXPORT Reference {
 public:
  Reference(std::shared_ptr<Context> context, RRefId id, std::optional<ForkId> fork, rpc::AgentId owner);
  ~Reference();  // takes the context's mutex: never under it
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  const RRefId& id() const { return id_; }
  const std::optional<ForkId>& fork() const { return fork_; }  // none on the owner itself
  const rpc::AgentId& owner() const { return owner_; }
  bool is_owner() const { return !fork_; }

 private:
  friend class Context;
  friend class Carried;

  const std::shared_ptr<Context> context_;
  const RRefId id_;
  const std::optional<ForkId> fork_;
  const rpc::AgentId owner_;
  std::exception_ptr refusal_;  // guarded by the context's mutex: why the owner refused to create the object
};

using ReferencePtr = std::shared_ptr<Reference>;

}  // namespace weft::rref
