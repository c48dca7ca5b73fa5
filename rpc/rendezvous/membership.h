// Membership: this agent's part in a job whose agents find each other by a store.
//
// Joining takes the agent's name in the store (and its rank, where the world is fixed), publishes its
// addresses, and from then on names of members resolve. Each member holds a lease: one that is not heard of
// for so long is lost, whatever has become of it. In a fixed world, or where an agent keeps the store, rank 0
// is the host: everybody waits for it, and it keeps watch over connections as well, so that a death is known
// at once. In a fixed world a loss ends the job on every member with an error that names the lost one
// (AgentCore::fail_world), and a name that has been taken is refused for good; in an elastic world the
// others learn of it (members.h), and a new incarnation may take the name. A job is of one kind: an agent
// that joins with the other kind, or with another size, is refused. Owned by the Agent. Thread-safe.
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

// What a member says of itself, in this incarnation of its name. A value.
struct Member {
  std::string name;
  std::uint64_t incarnation = 0;
  std::optional<std::size_t> rank;  // where it has one
  std::vector<std::string> addresses;
  std::map<std::string, std::string> metadata;  // of its Rendezvous

  AgentId id() const { return {name, incarnation}; }
};

enum class MemberChange : std::uint8_t {
  joined,
  left,  // in good order
  lost,  // it has died, or nobody has heard of it for as long as its lease
};
WEFT_EXPORT std::string_view to_string(MemberChange change);

struct MemberEvent {
  MemberChange change = MemberChange::joined;
  Member member;
};

// One onlooker's way through the job's history, from where it began; made by Agent::watch_members().
// Thread-safe.
class WEFT_EXPORT MemberWatch {
 public:
  virtual ~MemberWatch() = default;

  // The events since the last call, as soon as there is one; the first time all present members, this agent
  // included, as joined. The end of an incarnation is reported before the beginning of the next one with that
  // name; a member that joined and left between two calls is not reported. One call at a time
  // (failed_precondition); cancel() ends the wait and loses nothing. Ends with shut_down, with what ended the
  // job (peer_lost), with lease_lost where this agent was itself taken for dead, with unavailable where the
  // store is gone.
  virtual Future<std::vector<MemberEvent>> next() = 0;
};

// Which members of a job take part in a barrier or an all_gather (Job::barrier, Job::all_gather).
struct CollectiveOptions {
  // Told apart are collectives of different names, of different members, and of one name and the same members
  // by their number: a member's nth meets the others' nth. A name is there to be used again: each is
  // remembered by its members for as long as they live.
  std::string name = {};
  // Names of members, in any order, this one among them. Empty: all, where the world is fixed.
  std::vector<std::string> among = {};
  std::optional<std::chrono::nanoseconds> timeout = {};  // none: AgentOptions::call_timeout
};

class WEFT_EXPORT Membership {
 public:
  virtual ~Membership() = default;

  // Joins at the first call. Completes when `agents` members have joined, this one included. In a fixed world
  // members that have left count; in an elastic world only present members count. Retries for five minutes
  // until the store can be reached. already_exists: the name or rank is in use; in an elastic world only by
  // an agent that answers, because the lease of a dead one is waited for. failed_precondition: the job has a
  // fixed size and this agent's Rendezvous has not, or the reverse, or the sizes differ.
  virtual Future<void> wait_for(std::size_t agents) = 0;
  // The present members, as the store last reported them. Empty until this agent has joined.
  virtual std::vector<Member> members() const = 0;
  // Of the member that has this rank in a fixed world, here or gone, as last seen. not_found: none has it, or
  // none is known yet. failed_precondition where the world is not fixed.
  virtual std::string name_of(std::size_t rank) const = 0;
  // After wait_for() has been called: failed_precondition.
  virtual std::unique_ptr<MemberWatch> watch() = 0;
  // An orderly end of this member, before the agent drains: from here on its going is not a loss. Where the
  // host leaves first, others can no longer wait for anybody (unavailable): it calls others_left() before.
  virtual Future<void> leave() = 0;
  // For a member that only serves: completes when all other members (world_size in all, in a fixed world)
  // have joined and left, and this one has left with them. Several such members do not wait for each other;
  // the host ends last. Fails if the world fails. After `timeout` it fails with deadline_exceeded, which
  // names the members that have not left; then this agent is still a member, as after cancel().
  virtual Future<void> others_left(std::chrono::nanoseconds timeout) = 0;
  // What a barrier or an all_gather is made of: the members' values, each packed (codec/packed.h), by name.
  // type: canonical, the same at all members; empty: a barrier. Job::all_gather says how it ends.
  virtual Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type,
                                                       Buffer value) = 0;
  virtual Future<void> quiesce(CollectiveOptions options) = 0;  // as Job::quiesce
  virtual std::shared_ptr<Store> store() const = 0;             // as Job::store
  virtual void shut_down() = 0;                                 // pending futures above fail with shut_down
};

// Where the store's URL is an agent's address, rank 0 serves the store on its own agent, whose options.listen
// holds that address; others reach it by that. Before core->listen(); throws invalid_argument.
WEFT_EXPORT std::shared_ptr<Membership> make_membership(std::shared_ptr<AgentCore> core,
                                                        const Rendezvous& rendezvous);

}  // namespace weft::rpc
