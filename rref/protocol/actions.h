// The actions that a table requests: each event function appends them in order.
//
// The layer above executes the actions after the event function returns. A Send is an ordinary call of an
// idempotent method: the layer repeats it until it is answered or its receiver is reported lost, and passes
// each answer to the table that sent it. All other actions are executed at once. Thread-safety: values.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>
#include <weft/rref/protocol/messages.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace weft::rref::protocol {

template <class Message>
struct Send {
  rpc::AgentId to;
  Message message;
};

// The reason why a fork cannot be used. A fork keeps its first fault.
enum class Fault : std::uint8_t {
  none,
  creation_failed,  // the object was never created; the text has the reason
  refused,          // the object or the hand-over ended before the owner learned of this fork
  owner_lost,
  lease_lost,
  released,  // this agent has left, so its forks end although it still has handles
};

// For each fork that a UserTable makes or receives, it requests at most one ForkConfirmed and at most one
// ForkFailed. It requests at least one of the two, and never a confirmation after a failure. The first of
// them wakes all waits for the fork's confirmation.
struct ForkConfirmed {
  ForkId fork;
};
struct ForkFailed {
  ForkId fork;
  Fault fault = Fault::none;
  std::string text;
};

// The creation of an object for which a request waits at the owner has succeeded, or has failed.
struct ObjectReady {
  RRefId rref;
};
struct ObjectFailed {
  RRefId rref;
  std::string failure;
};

// No reference to the object is left: destroy it and its data. The table also requests this for failed
// creations.
struct DeleteObject {
  RRefId rref;
};

// From now on, the layer must report the death of this agent to the table, and keep the lease with the agent.
// The table requests this once for each agent.
struct WatchAgent {
  rpc::AgentId agent;
};

// Actions, in the order in which a table decided them.
using Action = std::variant<Send<ForkAdd>, Send<ForkDelete>, Send<ForkFence>, Send<ForkProbe>,
                            Send<ChildSettled>, Send<CreationFailed>, ForkConfirmed, ForkFailed, ObjectReady,
                            ObjectFailed, DeleteObject, WatchAgent>;
using Actions = std::vector<Action>;

}  // namespace weft::rref::protocol
