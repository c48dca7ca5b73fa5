// The messages between agents about references: plain data, sent as arguments and results of ordinary calls.
//
// Every message may arrive late, twice, or after a later message. The tables answer it in any case. The layer
// that sends a message repeats it until it is answered or the receiver is gone. The sender's AgentId is not
// in the message: it is the peer that the connection has authenticated. docs/internals/rref_protocol.md,
// "Messages", is the specification. Thread-safety: values.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>

#include <cstdint>
#include <string>

namespace weft::rref::protocol {

// An RRef in a call or a reply, and the target of a request.
struct Handover {
  RRefId rref;
  ForkId fork;         // the new fork; in a request, the fork that the request uses
  rpc::AgentId owner;  // the agent on which the object lives
  rpc::AgentId
      creator;  // the agent that chose `rref`; the owner watches it while the creation has not arrived
  bool settled = false;  // true: the owner lends a fork of a live object, so the receiver need not ask

  friend bool operator==(const Handover&, const Handover&) = default;
};

// The result of a call or reply that carried a Handover, as the sender of the Handover sees it.
enum class Outcome : std::uint8_t {
  accepted,  // the handler ran: the receiver has the forks, and the owner knows them
  not_sent,  // the receiver has certainly never seen the message
  unknown,   // any other result: an error reply, a deadline, a cancellation, a lost connection
};

// Child -> owner: "I hold this fork." The reply is a Standing.
struct ForkAdd {
  RRefId rref;
  ForkId fork;
  rpc::AgentId creator;
  rpc::AgentId parent;  // the agent that handed the fork over
  std::uint64_t serial =
      0;  // not sent; identifies this message, so that its sender's table recognizes the answer
};

// User -> owner: "I no longer hold this fork." Sent after its ForkAdd was answered. The reply is a Standing.
struct ForkDelete {
  RRefId rref;
  ForkId fork;
};

// Parent -> owner: "register this fork now or never." Sent if the result of a hand-over or a creation is
// unknown. The reply is a Standing; afterwards no message, however late, can register the fork.
struct ForkFence {
  RRefId rref;
  ForkId fork;
};

// Owner -> user: "did the fork that I lent you arrive?" If not, the user refuses it from now on.
struct ForkProbe {
  RRefId rref;
  ForkId fork;
};

// The user's answer to a ForkProbe.
struct ProbeReply {
  bool held = false;  // false: the user does not hold the fork, and never will
};

// Child -> parent: "the parent's fork need not be kept for this child." Without a result.
struct ChildSettled {
  ForkId fork;
  bool by_owner = true;  // false: the child gave up before the owner decided, so the parent must fence it
};

// Owner -> user: "the object of this fork will never exist." The fork stays, and is deleted like any other.
struct CreationFailed {
  RRefId rref;
  ForkId fork;
  std::string failure;
};

// The state of a fork at its owner.
enum class Verdict : std::uint8_t {
  registered,  // the owner knows the fork
  ended,       // the owner does not know the fork, and never will (again)
  // The owner considered the sender dead: its forks are gone, and its incarnation is refused permanently.
  lease_lost,
};

// The owner's answer: the state of a fork.
struct Standing {
  Verdict verdict = Verdict::registered;
  std::string creation_failure;  // not empty: the fork is registered, but the creation of the object failed

  friend bool operator==(const Standing&, const Standing&) = default;
};

}  // namespace weft::rref::protocol
