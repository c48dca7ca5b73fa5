// UserTable: one agent's forks of other agents' objects. For each fork it tracks whether the owner knows the
// fork, how many uses the fork has, and when the fork may end.
//
// A pure state machine, the other half of owner_table.h, with the same rules: each event function appends its
// actions to `out`, and the layer above executes them. A fork is released when it has no handle, no request
// in flight and no unsettled child, and its owner has confirmed it. So the owner learns of every end, and a
// parent fork exists until its child is confirmed. A fork that arrives a second time, or after its end, is
// refused. Thread-safety: none; one executor or mutex per agent. Errors: invalid ids from the layer itself
// throw std::logic_error; all messages from the network are answered or ignored.
// docs/internals/rref_protocol.md is the specification.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/recent_map.h>
#include <weft/rref/protocol/actions.h>
#include <weft/rref/protocol/ids.h>
#include <weft/rref/protocol/messages.h>
#include <weft/rref/protocol/number_set.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rref::protocol {

// The states of a fork, in their order.
enum class Stage : std::uint8_t {
  pending,    // the owner has not answered yet
  confirmed,  // the owner knows the fork
  releasing,  // the ForkDelete is in flight
  ended,      // no message to the owner is due; the entry stays while a handle or a request is left
};

// One fork in a listing.
struct ForkView {
  ForkId fork;
  RRefId rref;
  rpc::AgentId owner;
  Stage stage = Stage::pending;
  Fault fault = Fault::none;
  std::string text;  // the text of the fault
  // The numbers of handles, requests in flight and unsettled children that keep the fork.
  std::size_t handles = 0;
  std::size_t requests = 0;
  std::size_t children = 0;
};

class WEFT_EXPORT UserTable {
 public:
  explicit UserTable(rpc::AgentId self);

  // --- New forks ---
  // Makes a fork of a new object at `owner`, with one handle. Send the creation with the returned ids.
  // nullopt: the owner is known to be lost. create_ended(): `accepted` means that the object lives. After any
  // other outcome, this agent asks the owner for the state of the creation.
  std::optional<Handover> create(const rpc::AgentId& owner, Actions& out);
  void create_ended(const ForkId& fork, Outcome outcome, Actions& out);
  // A call or reply from `from` carries an RRef to another agent's object. Fault::none: the fork has a
  // handle, and the handler may run after ForkConfirmed. Otherwise the handler must not run, and the fork has
  // no handle.
  Fault receive(const rpc::AgentId& from, const Handover& handover, Actions& out);

  // --- Using them ---
  void retain(const ForkId& fork);                 // adds a handle; the caller already has one
  void release(const ForkId& fork, Actions& out);  // removes a handle
  // Begins a request through the fork. The request keeps the fork until it is answered, even after the last
  // handle is released. If the fork has a fault, begin_request() returns it, and no request begins. The
  // message of the request contains describe().
  Fault begin_request(const ForkId& fork);
  void end_request(const ForkId& fork, Actions& out);
  Handover describe(const ForkId& fork) const;

  // --- Handing over to another agent: a user or the owner ---
  // nullopt: the fork has a fault. Each attempt to send is a separate hand-over. If a call carries the fork,
  // report its end by hand_over_ended(). If a reply carries the fork, the table waits for ChildSettled or the
  // end of the connection.
  std::optional<Handover> hand_over(const ForkId& parent, const rpc::AgentId& to);
  void hand_over_ended(const ForkId& child, Outcome outcome, Actions& out);

  // --- Messages, and answers to this table's own ---
  void on_child_settled(const rpc::AgentId& from, const ChildSettled& message, Actions& out);
  void on_creation_failed(const rpc::AgentId& from, const CreationFailed& message, Actions& out);
  ProbeReply on_fork_probe(const rpc::AgentId& from, const ForkProbe& message, Actions& out);
  void answered(const rpc::AgentId& owner, const ForkAdd& message, const Standing& answer, Actions& out);
  void answered(const rpc::AgentId& owner, const ForkDelete& message, const Standing& answer, Actions& out);
  void answered(const rpc::AgentId& owner, const ForkFence& message, const Standing& answer, Actions& out);

  // --- Peers ---
  // The connection to `peer` has ended, but the peer may return: hand-overs that were in flight are fenced.
  void connection_ended(const rpc::AgentId& peer, Actions& out);
  // `agent` is gone, as this agent sees it. This agent must not renew its lease with `agent` from now on.
  // Only the latest lost agents are remembered (RecentMap). A new fork of an older one is watched, and lost
  // again.
  void agent_lost(const rpc::AgentId& agent, Actions& out);
  // The reply to a request states that `owner` has dropped this agent. Replies to the table's own messages
  // arrive at answered().
  void lease_lost(const rpc::AgentId& owner, Actions& out);

  // This agent leaves: each fork is released as soon as no request and no child needs it, even if it has
  // handles. Then the fork has the fault `released`.
  void leave(Actions& out);

  // --- Reports ---
  std::optional<ForkView> find(const ForkId& fork) const;
  std::vector<ForkView> live_forks() const;
  // true: at least one fork has no handle and has not ended. After leave(), forks with handles count, too.
  bool has_ending_forks() const;
  std::size_t lend_ranges() const;  // the number of stored ranges of forks that owners lent, over all owners

 private:
  struct Child {
    rpc::AgentId to;
    bool fencing = false;
  };
  struct Fork {
    RRefId rref;
    rpc::AgentId owner;
    rpc::AgentId creator;
    std::optional<rpc::AgentId> parent;  // the agent to notify when the owner has decided
    Stage stage = Stage::pending;
    Fault fault = Fault::none;
    std::string text;
    std::size_t handles = 0;
    std::uint64_t serial = 0;  // ForkAdd::serial
    std::size_t requests = 0;
    std::map<ForkId, Child> children;
  };
  // The state of each watched owner. It is deleted when the owner is dropped.
  struct Owner {
    std::uint64_t next_birth = 0;  // the number of this agent's next birth at that owner
    NumberSet lends;               // births of forks lent to this agent: arrived or refused, permanently
  };

  Owner& watch(const rpc::AgentId& owner, Actions& out);
  Fork& known(const ForkId& fork);
  const Fork& known(const ForkId& fork) const;
  Fork& in_use(const ForkId& fork);
  static ForkView view(const ForkId& id, const Fork& fork);
  void confirm(const ForkId& id, Fork& fork, const std::string& creation_failure, Actions& out);
  void end(const ForkId& id, Fork& fork, Fault fault, const std::string& text, Actions& out);
  static void set_fault(const ForkId& id, Fork& fork, Fault fault, const std::string& text, Actions& out);
  static void notify_parent(const ForkId& id, Fork& fork, bool by_owner, Actions& out);
  void fence(const Fork& parent, const ForkId& id, Child& child, Actions& out);
  void drop_child(const ForkId& child, Actions& out);
  void lose(const rpc::AgentId& owner, Fault fault, Actions& out);
  void reap(const ForkId& id, Actions& out);

  const rpc::AgentId self_;
  std::map<ForkId, Fork> forks_;
  std::map<ForkId, ForkId> parents_;  // unsettled child -> its parent, which is kept
  std::map<rpc::AgentId, Owner> owners_;
  rpc::RecentMap<rpc::AgentId, Fault> lost_{rpc::max_lost_remembered};
  std::uint64_t next_serial_ = 0;
  bool leaving_ = false;
};

}  // namespace weft::rref::protocol
