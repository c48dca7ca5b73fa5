// Reference: one handle to a remote object, or to one of this agent's own objects. Copies of an RRef<T> share
// it.
//
// Only the RRefLayer creates references. The destructor releases the fork, or the owner's hold. Thread-safe.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace weft::rref {

class RRefLayer;

// The description of a reference, which does not keep the reference alive. Calls keep it for the errors of
// replies. A call in flight holds the object at its owner, so if a handle is released meanwhile, the release
// takes effect when the call has ended.
struct About {
  std::shared_ptr<RRefLayer> layer;
  RRefId id;
  rpc::AgentId owner;
  std::exception_ptr refusal =
      nullptr;  // guarded by the layer's mutex: the error with which the owner refused to create the object
};

class WEFT_EXPORT Reference {
 public:
  Reference(std::shared_ptr<RRefLayer> layer, RRefId id, std::optional<ForkId> fork, rpc::AgentId owner);
  ~Reference();  // locks the layer's mutex: never call it with that mutex locked
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // The object of the reference and its layer. fork(): this handle's fork. All are constant.
  const std::shared_ptr<About>& about() const { return about_; }
  const std::shared_ptr<RRefLayer>& layer() const { return about_->layer; }
  const RRefId& id() const { return about_->id; }
  const std::optional<ForkId>& fork() const { return fork_; }  // nullopt on the owner itself
  // The agent on which the object lives.
  const rpc::AgentId& owner() const { return about_->owner; }
  bool is_owner() const { return !fork_; }

 private:
  const std::shared_ptr<About> about_;
  const std::optional<ForkId> fork_;
};

// Copies share one fork.
using ReferencePtr = std::shared_ptr<Reference>;

}  // namespace weft::rref
