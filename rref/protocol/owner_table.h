// OwnerTable: the states and references of the objects that one agent owns. It decides when an object may be
// destroyed.
//
// A pure state machine: each event function appends its actions to `out` and has no other effect. The layer
// above owns it (one per agent), executes the actions, and provides the clock and the network; user_table.h
// is the other half. An object is deleted when no fork and no hold is left, and never before its creation has
// ended. Thread-safety: none; one executor or mutex per agent. Errors: invalid ids from the layer itself
// throw std::logic_error; all messages from the network are answered. docs/internals/rref_protocol.md is the
// specification.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/recent_map.h>
#include <weft/rref/protocol/actions.h>
#include <weft/rref/protocol/forks.h>
#include <weft/rref/protocol/ids.h>
#include <weft/rref/protocol/messages.h>
#include <weft/rref/protocol/number_set.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::rref::protocol {

// The description of an object by the layer above.
struct ObjectInfo {
  std::string type;                              // for the leak report
  std::string site;                              // where the program created it, "" if unknown
  std::chrono::steady_clock::time_point made{};  // by the clock of the layer above
};

// The states of an object, in their order. If the creation fails or never arrives, the state becomes `failed`
// instead of `live`.
enum class ObjectState : std::uint8_t {
  expected,  // a message named the object before its creation arrived
  creating,  // its constructor or method runs
  live,
  failed,  // the creation failed; the entry is kept until all forks and holds have got the error and ended
};

// The state of the object for a request or an argument that arrives at the owner. `ready` and `waiting` take
// a hold.
enum class Access : std::uint8_t {
  ready,
  waiting,  // ObjectReady or ObjectFailed follows
  failed,   // failure() says why
  gone,
  lease_lost,  // the asking agent was dropped
};

// One object in a listing, with the owner's holds and the users' forks.
struct LiveObject {
  RRefId id;
  ObjectInfo info;
  ObjectState state = ObjectState::live;
  std::size_t holds = 0;
  std::vector<std::pair<ForkId, rpc::AgentId>> forks;  // each with its user
};

class WEFT_EXPORT OwnerTable {
 public:
  explicit OwnerTable(rpc::AgentId self);

  // --- Creation ---
  // Adds an object that this agent itself creates, with one hold for its first handle. If `state` is
  // creating, finish_create() must follow.
  RRefId create_local(ObjectInfo info, ObjectState state = ObjectState::live);
  // A creation by a peer arrives. Run the constructor only if the answer is `registered`, then call
  // finish_create().
  Standing begin_create(const rpc::AgentId& creator, const RRefId& rref, ObjectInfo info, Actions& out);
  void finish_create(const RRefId& rref, const std::optional<std::string>& failure, Actions& out);

  // --- Holds: owner-side handles, requests in progress, pins of named objects ---
  void hold(const RRefId& rref);  // adds a hold; the caller already has one
  void unhold(const RRefId& rref, Actions& out);
  // A request through a peer's fork arrives. If begin_request() takes a hold, call unhold() when the request
  // is answered.
  Access begin_request(const rpc::AgentId& from, const Handover& target, Actions& out);
  // A peer hands this agent an RRef to an object that this agent owns. If receive() takes a hold, it belongs
  // to the new handle.
  Access receive(const rpc::AgentId& from, const Handover& handover, Actions& out);

  // --- Lending: the owner hands its object to a user ---
  // Makes a fork for `user`; nullopt: `user` was dropped. The caller must have a hold. If a call carries the
  // fork, report its end by lend_ended(). If a reply carries the fork, the table does not know whether it
  // arrived: after the end of the connection, it probes the fork.
  std::optional<Handover> lend(const RRefId& rref, const rpc::AgentId& user, Actions& out);
  void lend_ended(const Handover& lent, Outcome outcome, Actions& out);

  // --- Messages, and answers to this table's own ---
  Standing on_fork_add(const rpc::AgentId& from, const ForkAdd& message, Actions& out);
  Standing on_fork_delete(const rpc::AgentId& from, const ForkDelete& message, Actions& out);
  Standing on_fork_fence(const rpc::AgentId& from, const ForkFence& message, Actions& out);
  void probe_answered(const ForkProbe& probe, const ProbeReply& reply, Actions& out);

  // --- Peers ---
  // The connection to `peer` has ended, but the peer may return: the table probes the forks that were in
  // transit.
  void connection_ended(const rpc::AgentId& peer, Actions& out);
  // `agent` has left or died, or its lease has expired. Its forks end, and this incarnation is refused from
  // now on. false: it was dropped before. Only the latest dropped agents are remembered (RecentMap).
  bool drop_agent(const rpc::AgentId& agent, Actions& out);
  bool is_dropped(const rpc::AgentId& agent) const { return dropped_.contains(agent); }

  // --- Reports ---
  std::vector<LiveObject> live_objects() const;
  bool has_fork(const RRefId& rref, const ForkId& fork) const;
  std::string failure(const RRefId& rref) const;
  std::size_t birth_ranges() const;  // the number of stored ranges of settled births, over all peers

 private:
  // The properties that objects of the same type, site and creator share. They are stored once.
  struct Kind {
    rpc::AgentId creator;
    std::string type, site;

    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  using Kinds = std::map<Kind, std::size_t>;  // each with the number of its objects
  struct Object {
    Kinds::value_type* kind = nullptr;
    std::chrono::steady_clock::time_point made{};
    std::uint32_t holds = 0;
    ObjectState state = ObjectState::expected;
    Forks forks;
  };
  // The state of each watched agent. It is deleted when the agent is dropped.
  struct Peer {
    NumberSet births;             // births of the agent's forks that are registered or fenced; never removed
    std::uint64_t next_lend = 0;  // counts the forks that this owner has lent to the agent
  };

  using Peers = std::map<rpc::AgentId, Peer>;
  Peers::value_type& watch(const rpc::AgentId& agent, Actions& out);
  bool settle(const rpc::AgentId& origin, const ForkId& fork);
  bool may_still_be_created(const RRefId& rref, const rpc::AgentId& creator) const;
  Object* find(const RRefId& rref);
  const Object* find(const RRefId& rref) const;
  Object& add(const RRefId& rref, const rpc::AgentId& creator);
  void describe(Object& object, const rpc::AgentId& creator, ObjectInfo info);
  void set_kind(Object& object, Kind kind);
  void forget_kind(Object& object);
  Object& known(const RRefId& rref);
  Object* find_or_expect(const RRefId& rref, const rpc::AgentId& creator, Actions& out);
  Access acquire(const RRefId& rref, const rpc::AgentId& creator, Actions& out);
  Standing standing(const RRefId& rref, const ForkId& fork) const;
  void fail(const RRefId& rref, Object& object, const std::string& failure, Actions& out);
  void collect(const RRefId& rref, Actions& out);

  const rpc::AgentId self_;
  std::uint64_t next_local_ = 0;
  std::map<RRefId, Object> objects_;
  Kinds kinds_;
  std::map<RRefId, std::string> failures_;  // the errors of failed objects
  Peers peers_;                             // forks refer to its keys
  struct Dropped {};
  rpc::RecentMap<rpc::AgentId, Dropped> dropped_{rpc::max_lost_remembered};
};

}  // namespace weft::rref::protocol
