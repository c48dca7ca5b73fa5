// What a table wants done: the answer of each event function, appended in order.
//
// The layer above carries actions out after the event returns. A Send is an ordinary call of an idempotent
// method: it is repeated until it is answered or its receiver is reported lost, and each answer goes back to
// the table that sent it. Everything else is done at once. Thread-safety: values.
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

// Why a fork is of no use. The first that applies stays.
enum class Fault : std::uint8_t {
  none,
  creation_failed,  // the object never came to life; the text says why
  refused,          // the object or the hand-over ended before the owner learned of this fork
  owner_lost,
  lease_lost,
  released,  // this agent has left: its forks end although it still has handles on them
};

// For each fork that a UserTable makes or receives: at most one ForkConfirmed, at most one ForkFailed, at
// least one of them, and never a confirmation after a failure. Who waits for the fork's confirmation is woken
// by whichever is first.
struct ForkConfirmed {
  ForkId fork;
};
struct ForkFailed {
  ForkId fork;
  Fault fault = Fault::none;
  std::string text;
};

// For each object that someone at the owner waits for: the creation succeeded, or failed.
struct ObjectReady {
  RRefId rref;
};
struct ObjectFailed {
  RRefId rref;
  std::string failure;
};

// Nobody holds the object: destroy it and what is kept beside it. Also sent for failed creations.
struct DeleteObject {
  RRefId rref;
};

// From now on this agent's death must be reported to the table, and its lease kept. Once for each agent.
struct WatchAgent {
  rpc::AgentId agent;
};

using Action = std::variant<Send<ForkAdd>, Send<ForkDelete>, Send<ForkFence>, Send<ForkProbe>,
                            Send<ChildSettled>, Send<CreationFailed>, ForkConfirmed, ForkFailed, ObjectReady,
                            ObjectFailed, DeleteObject, WatchAgent>;
using Actions = std::vector<Action>;

}  // namespace weft::rref::protocol
