// meet(): the rendezvous of a new group's members: their identities, and whether they can share memory.
#pragma once

#include <weft/parallel/collectives/internal/group/group_member.h>
#include <weft/parallel/collectives/internal/hosts/levels.h>

#include <functional>

namespace weft::collectives {

// One member's information about the new group.
struct Rendezvous {
  GroupId id;                         // rank 0's incarnation and number
  std::vector<rpc::AgentId> members;  // by rank; empty: this member belongs to no group
  int rank = 0;                       // this member's rank
  // null: no shared memory. If `hosts` is set, only this host's members share it.
  std::shared_ptr<SharedSpace> space;
  std::optional<Hosts> hosts;  // if some hosts have several members
};

// Exchanges a value of each member with all members, in one of two rounds. Completes with the values of all
// members, in the same order on all members.
using Talk = std::function<rpc::Future<std::vector<rpc::Buffer>>(int round, rpc::Buffer said)>;

// The place of this member in an exchange, and in the new group.
struct Seat {
  int index = 0, of = 1;     // this member's index, and the number of members, in the exchange
  std::uint64_t number = 0;  // the number of the new group, if this agent is its rank 0
  // Members with one color form a group. nullopt: the member only takes part in the exchange.
  std::optional<int> color = 0;
  int key = 0;  // the group's members are ordered by their keys, then by their indices in the exchange
};

// Fails if the exchange fails; a cancel() of this future reaches the exchange's futures.
WEFT_EXPORT rpc::Future<Rendezvous> meet(Talk talk, rpc::AgentId self, Seat seat,
                                         const GroupOptions& options);

}  // namespace weft::collectives
