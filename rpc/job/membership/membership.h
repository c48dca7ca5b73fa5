// Membership: the membership of this agent in a job whose agents find each other through a store.
//
// An agent that joins claims its name in the store (in a fixed world also its rank) and publishes its
// addresses. Then it can resolve names of members. Each member renews a lease; a member whose lease expires
// is lost. In a fixed world, or if an agent keeps the store, rank 0 is the host. All members wait for the
// host to join. The host also watches connections, so that a death is detected at once. If a fixed world
// loses a member, the job fails on every member with an error that names the lost member
// (AgentCore::fail_world). In a fixed world, a name can be claimed only once. In an elastic world the other
// members are notified (MemberWatch), and a new incarnation may claim the name. If an agent's Rendezvous
// states the other kind of world or another size than the job has, the agent cannot join. Owned by the Agent.
// Thread-safe.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/future.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

class AgentCore;
class Store;
struct Rendezvous;

// The published data of a member, for one incarnation of its name. A value.
struct Member {
  std::string name;
  std::uint64_t incarnation = 0;
  std::optional<std::size_t> rank;  // nullopt: the member has no rank
  std::vector<std::string> addresses;
  std::map<std::string, std::string> metadata;  // Rendezvous::metadata

  AgentId id() const { return {name, incarnation}; }  // of this incarnation
};

// A change of a member.
enum class MemberChange : std::uint8_t {
  joined,  // the member can be called
  left,    // by leave()
  lost,    // the member has died, or its lease has expired
};
WEFT_EXPORT std::string_view to_string(MemberChange change);

// One event of a MemberWatch. A value.
struct MemberEvent {
  MemberChange change = MemberChange::joined;
  Member member;  // as published
};

// Reports the changes of a job's members, in order. Agent::watch_members() creates it. Thread-safe.
class WEFT_EXPORT MemberWatch {
 public:
  virtual ~MemberWatch() = default;

  // Completes with the events since the last call, once there is at least one. The first call returns all
  // present members, including this agent, as joined. The end of an incarnation is reported before the
  // beginning of the next one with that name; a member that joined and left between two calls is not
  // reported. A second call while one waits fails with failed_precondition. cancel() ends the wait and loses
  // no event. Fails with shut_down, with the error that ended the job (peer_lost), with lease_lost if this
  // agent was declared dead, or with unavailable if the store is gone.
  virtual Future<std::vector<MemberEvent>> next() = 0;
};

// The name, the members and the timeout of a barrier or an all_gather (Job::barrier, Job::all_gather).
struct CollectiveOptions {
  // A collective is identified by its name, its members, and its number among the collectives with the same
  // name and members: the nth calls of all members form one collective. Reuse names: members keep a counter
  // for each name.
  std::string name = {};
  // Names of members, in any order, including this one. Empty: all members of a fixed world.
  std::vector<std::string> among = {};
  std::optional<std::chrono::nanoseconds> timeout = {};  // nullopt: AgentOptions::call_timeout applies
};

class WEFT_EXPORT Membership {
 public:
  virtual ~Membership() = default;

  // The first call joins the job. The future completes when `agents` members have joined, including this one.
  // In a fixed world members that have left count; in an elastic world only present members count. While the
  // store cannot be reached, wait_for() retries for five minutes. already_exists: another agent has the name
  // or the rank. In an elastic world, that agent is alive, because wait_for() waits until the lease of a dead
  // agent has expired. failed_precondition: this agent's Rendezvous states another kind of world (fixed or
  // elastic) or another size than the job has.
  virtual Future<void> wait_for(std::size_t agents) = 0;
  // The present members, as the store last reported them. Empty until this agent has joined.
  virtual std::vector<Member> members() const = 0;
  // The name of the member with this rank in a fixed world, present or gone, as last seen. Throws not_found
  // if no member with that rank is known, failed_precondition if the world is not fixed.
  virtual std::string name_of(std::size_t rank) const = 0;
  // Watches the members. Throws failed_precondition before wait_for() has been called.
  virtual std::unique_ptr<MemberWatch> watch() = 0;
  // Leaves the job in an orderly way, before the agent drains, so that the other members do not consider it
  // lost. If the host leaves before other members, the waits of these members fail with unavailable. So the
  // host calls others_left() first. While the store cannot be reached, leave() tries again for
  // Rendezvous::lease. If it fails, this agent is still a member, and leave() may be called again.
  virtual Future<void> leave() = 0;
  // For a member that only serves: completes when this member has left. The member leaves when all members
  // have joined (in a fixed world: world_size members), no other member has work left, and all serving
  // members have released their references. The host leaves last. Fails if the world fails. After `timeout`
  // it fails with deadline_exceeded, and the error names the members that have not left. After that error,
  // and after cancel(), this agent is still a member.
  virtual Future<void> others_left(std::chrono::nanoseconds timeout) = 0;
  // Runs a barrier or an all_gather. Returns the members' values, each packed (codec/packed.h), by name.
  // type: the canonical type of the value, the same on all members; empty: a barrier. Fails as
  // Job::all_gather does.
  virtual Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type,
                                                       Buffer value) = 0;
  virtual Future<void> quiesce(CollectiveOptions options) = 0;  // as Job::quiesce
  virtual std::shared_ptr<Store> store() const = 0;             // as Job::store
  virtual void shut_down() = 0;                                 // all pending futures fail with shut_down
};

// Creates the membership; call it before core->listen(). If the store's URL is an agent's address, rank 0
// serves the store on its own agent, whose options.listen contains that address. Throws invalid_argument.
WEFT_EXPORT std::shared_ptr<Membership> make_membership(std::shared_ptr<AgentCore> core,
                                                        const Rendezvous& rendezvous);

}  // namespace weft::rpc
