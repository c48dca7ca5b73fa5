// meet(): members come together for a new group: who they are, and whether they can share memory.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/group_core.h>
#include <weft/parallel/collectives/hosts/levels.h>

#include <functional>

namespace weft::collectives {

struct Rendezvous {
  GroupId id;
  std::vector<rpc::AgentId> members;   // by rank; none: this one belongs to no group
  int rank = 0;                        // this one's
  std::shared_ptr<SharedSpace> space;  // null: they share none; with hosts: of this one's members
  std::optional<Hosts> hosts;          // where some of them are on each of several
};

// What each has to say to all, in two rounds; completes with what all have said, in one order, the same at
// all.
using Talk = std::function<rpc::Future<std::vector<rpc::Buffer>>(int round, rpc::Buffer said)>;

// Where this one stands in a talk, and which group it is for.
struct Seat {
  int index = 0, of = 1;         // of those that talk
  std::uint64_t number = 0;      // of this agent's groups, used where it is rank 0
  std::optional<int> color = 0;  // those of one make a group; none: it only talks
  int key = 0;                   // its members are in the order of their keys, then of their seats
};

// Ends as the talk does, whose futures a cancel() of this one reaches.
WEFT_EXPORT rpc::Future<Rendezvous> meet(Talk talk, rpc::AgentId self, Seat seat,
                                         const GroupOptions& options);

}  // namespace weft::collectives
