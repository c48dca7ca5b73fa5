// Membership: this agent's part in a job whose agents find each other by a store.
//
// Joining takes the agent's name and rank in the store, publishes its addresses, and waits for rank 0, the
// host; from then on names of members resolve. The host keeps the store (unless it is a file) and keeps
// watch: in a fixed world, a member whose last connection to the host ends before it has left is lost, the
// host tells everybody, and the job ends on every member with an error that names it (AgentCore::fail_world);
// the host's own loss each member sees itself. A name that has been taken in a fixed world is refused for
// good: nobody joins twice. Owned by the Agent. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent_core.h>

namespace weft::rpc {

class WEFT_EXPORT Membership {
 public:
  virtual ~Membership() = default;

  // Joins at the first call, and completes when so many have joined, this one and those that have left since
  // included. Until the store can be reached it tries again, for five minutes. already_exists: the name or
  // rank is taken.
  virtual Future<void> wait_for(std::size_t agents) = 0;
  // An orderly end of this member, before the agent drains: from here on its going is not a loss. Where the
  // host leaves first, others can no longer wait for anybody (unavailable): it calls others_left() before.
  virtual Future<void> leave() = 0;
  // For a member that only serves: completes when all others (world_size in all, where the world is fixed)
  // have joined and left, and this one has left with them. Several such members do not wait for each other;
  // the host ends last. Fails where the world did.
  virtual Future<void> others_left() = 0;
  virtual void shut_down() = 0;  // pending futures above fail with shut_down
};

// Rank 0 serves the store on its own agent, whose options.listen holds the store's address; others reach it
// by that address. Anything but a file:// URL is such an address. Before core->listen(); throws
// invalid_argument.
WEFT_EXPORT std::shared_ptr<Membership> make_membership(std::shared_ptr<AgentCore> core,
                                                        const Rendezvous& rendezvous);

}  // namespace weft::rpc
