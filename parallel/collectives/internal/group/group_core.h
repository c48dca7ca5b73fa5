// GroupCore: one member's part in a group: its place in the group, and the objects that guard the group's
// state, one each. It owns them; they know only those before them.
//
// Collectives on tensors of a device use GroupDevices, all other collectives GroupCollectives. Every handle
// of the group and every operation in flight keeps it alive. Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/group/group_devices.h>

namespace weft::collectives {

class WEFT_EXPORT GroupCore final : public GroupMember {
 public:
  // kind: the kind of the backend.
  GroupCore(std::shared_ptr<rpc::AgentCore> agent, GroupId id, Options options,
            std::vector<rpc::AgentId> members, int rank, GroupBackend kind, std::unique_ptr<Backend> backend)
      : GroupMember(std::move(agent), id, std::move(options), std::move(members), rank,
                    [this](const std::exception_ptr& error) {
                      failure_.fail_now(rpc::ErrorKind::internal,
                                        describe(this->rank()) + ": " + text_of(error));
                    }),
        kind_(kind),
        backend_(std::move(backend)) {}

  GroupBackend kind() const { return kind_; }     // of the backend
  Backend& backend() const { return *backend_; }  // for tensors of the host
  GroupFailure& failure() { return failure_; }
  GroupCollectives& collectives() { return collectives_; }
  GroupMessages& messages() { return messages_; }
  GroupValues& values() { return values_; }
  GroupDevices& devices() { return devices_; }
  // Returns the GroupDevices that run a call on that tensor; null if the backend runs the call. tensor: the
  // call's first tensor; null for a barrier.
  GroupDevices* devices_for(const at::Tensor* tensor) {
    return tensor != nullptr && is_on_device(*tensor) ? &devices_ : nullptr;
  }

 private:
  const GroupBackend kind_;
  const std::unique_ptr<Backend> backend_;
  GroupFailure failure_{*this, {&devices_, &collectives_, &messages_, &values_}};
  GroupCollectives collectives_{*this, failure_, *backend_};
  GroupMessages messages_{*this, failure_, *backend_};
  GroupValues values_{*this, failure_};
  GroupDevices devices_{*this, failure_, collectives_, messages_, values_};
};

}  // namespace weft::collectives
