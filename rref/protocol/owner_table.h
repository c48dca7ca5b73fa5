// OwnerTable: what one agent knows of the objects that it owns: their state, who holds them, and
// when they may go.
//
// A pure state machine: an event comes in, its actions are appended to `out`, nothing else happens. The layer
// above owns it (one per agent), carries the actions out, and is its clock and its network; user_table.h is
// the other half. An object is deleted when no fork and no hold is left, and never before its creation has
// ended. Thread-safety: none; one executor or mutex per agent. Ids that the layer itself got wrong throw
// std::logic_error; whatever comes from the network is answered. docs/rref_protocol.md is the specification.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>
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
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::rref::protocol {

struct ObjectInfo {
  std::string type;                              // for the leak report
  std::string site;                              // where the program created it, "" if unknown
  std::chrono::steady_clock::time_point made{};  // by the clock of the layer above
};

enum class ObjectState : std::uint8_t {
  expected,  // a message named it before its creation arrived
  creating,  // its constructor or method runs
  live,
  failed,  // no object, kept until its forks and holds have ended, so that each of them is told why
};

// What a request or an argument finds at the owner. `ready` and `waiting` have taken a hold.
enum class Access : std::uint8_t {
  ready,
  waiting,  // ObjectReady or ObjectFailed follows
  failed,   // failure() says why
  gone,
  lease_lost,  // the asking agent was dropped
};

struct LiveObject {
  RRefId id;
  ObjectInfo info;
  ObjectState state = ObjectState::live;
  std::size_t holds = 0;
  std::vector<std::pair<ForkId, rpc::AgentId>> forks;  // and who holds each
};

class WEFT_EXPORT OwnerTable {
 public:
  explicit OwnerTable(rpc::AgentId self);

  // --- Creation ---
  // An object made on this agent itself, with one hold for its first handle. While `state` is creating,
  // finish_create() has to follow.
  RRefId create_local(ObjectInfo info, ObjectState state = ObjectState::live);
  // A peer's creation arrives. Run the constructor only if the answer is `registered`,
  // then call finish_create().
  Standing begin_create(const rpc::AgentId& creator, const RRefId& rref, ObjectInfo info, Actions& out);
  void finish_create(const RRefId& rref, const std::optional<std::string>& failure, Actions& out);

  // --- Holds: owner-side handles, requests in progress, pins of named objects ---
  void hold(const RRefId& rref);  // one more, by someone who has one
  void unhold(const RRefId& rref, Actions& out);
  // A request through a peer's fork arrives. The hold, if taken, ends with unhold() when
  // the request is answered.
  Access begin_request(const rpc::AgentId& from, const Handover& target, Actions& out);
  // A peer hands this agent an RRef to its own object. The hold, if taken, is the new handle's.
  Access receive(const rpc::AgentId& from, const Handover& handover, Actions& out);

  // --- Lending: the owner hands its object to a user ---
  // Nothing if `user` was dropped. The caller has a hold. Report how a call ended; a reply has no such
  // report, the end of its connection decides.
  std::optional<Handover> lend(const RRefId& rref, const rpc::AgentId& user, Actions& out);
  void lend_ended(const Handover& lent, Outcome outcome, Actions& out);

  // --- Messages, and answers to this table's own ---
  Standing on_fork_add(const rpc::AgentId& from, const ForkAdd& message, Actions& out);
  Standing on_fork_delete(const rpc::AgentId& from, const ForkDelete& message, Actions& out);
  Standing on_fork_fence(const rpc::AgentId& from, const ForkFence& message, Actions& out);
  void probe_answered(const ForkProbe& probe, const ProbeReply& reply, Actions& out);

  // --- Peers ---
  // The connection to `peer` ended, though the peer may come back: lends that were under way are asked for.
  void connection_ended(const rpc::AgentId& peer, Actions& out);
  // `agent` left, died, or its lease ran out: its forks end, and this incarnation is refused for good.
  void drop_agent(const rpc::AgentId& agent, Actions& out);

  // --- Reports ---
  std::vector<LiveObject> live_objects() const;
  bool has_fork(const RRefId& rref, const ForkId& fork) const;
  std::string failure(const RRefId& rref) const;
  std::size_t birth_ranges() const;  // over all peers: how much is remembered of settled births

 private:
  // What objects have in common that were made alike: kept once for all of them.
  struct Kind {
    rpc::AgentId creator;
    std::string type, site;

    friend auto operator<=>(const Kind&, const Kind&) = default;
  };
  using Kinds = std::map<Kind, std::size_t>;  // and how many are of it
  struct Object {
    Kinds::value_type* kind = nullptr;
    std::chrono::steady_clock::time_point made{};
    std::uint32_t holds = 0;
    ObjectState state = ObjectState::expected;
    Forks forks;
  };
  // What is kept for each agent that is watched, as each fork's user is. It goes when the agent does.
  struct Peer {
    rpc::AgentId id;
    NumberSet births;  // of forks that the agent bore at this owner: registered or fenced, once and for all
    std::uint64_t next_lend = 0;  // births of this owner's forks for that agent
  };

  bool fenced(std::uint64_t incarnation) const { return fenced_.contains(incarnation); }
  Peer& watch(const rpc::AgentId& agent, Actions& out);
  bool settle(const ForkId& fork);
  bool may_still_be_created(const RRefId& rref) const;
  Object* find(const RRefId& rref);
  const Object* find(const RRefId& rref) const;
  Object& add(const RRefId& rref, const rpc::AgentId& creator);
  void describe(Object& object, ObjectInfo info);
  void set_kind(Object& object, Kind kind);
  void forget_kind(Object& object);
  const rpc::AgentId& user_of(const Fork& fork) const { return peers_.at(fork.user).id; }
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
  std::map<RRefId, std::string> failures_;  // of those that failed
  std::map<std::uint64_t, Peer> peers_;     // by incarnation
  std::set<std::uint64_t> fenced_;          // incarnations: eight bytes of memory for each death
};

}  // namespace weft::rref::protocol
