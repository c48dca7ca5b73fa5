// meet(): the members of a group come together: who they are, and whether they can share memory.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/group_core.h>

namespace weft::collectives {

struct Meeting {
  GroupId id;
  std::vector<rpc::AgentId> members;   // by rank
  std::shared_ptr<SharedSpace> space;  // null: they cannot, or are not to
};

// Of all of options.members at once. number: of the group, where this is rank 0. The agent outlives it. Ends
// as Agent::all_gather does.
rpc::Future<Meeting> meet(rpc::Agent& agent, const GroupOptions& options, int rank, std::uint64_t number);

}  // namespace weft::collectives
