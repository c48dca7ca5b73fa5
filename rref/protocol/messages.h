// What agents say to each other about references: plain data, sent as arguments and
// results of ordinary calls.
//
// Every message here may arrive late, twice, or after its effect was overtaken: the tables answer it all the
// same, and the layer that sends it repeats it until it is answered or the receiver is gone. The sender's
// AgentId is not in the message: it is the peer that the connection has authenticated. docs/rref_protocol.md,
// "Messages", is the specification. Thread-safety: values.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rref/protocol/ids.h>

#include <cstdint>
#include <string>

namespace weft::rref::protocol {

// An RRef inside a call or a reply, and the target of a request.
struct Handover {
  RRefId rref;
  ForkId fork;           // the new fork, or, in a request, the fork that the request goes through
  rpc::AgentId owner;    // where the object lives
  rpc::AgentId creator;  // who chose `rref`; the owner watches it while the creation has not arrived
  bool settled = false;  // lent by the owner, of a live object: the receiver need not ask

  friend bool operator==(const Handover&, const Handover&) = default;
};

// How a call or reply that carried a Handover ended, as its sender sees it.
enum class Outcome : std::uint8_t {
  accepted,  // its handler ran: the receiver has the forks, and the owner knows them
  not_sent,  // certainly never seen by the receiver
  unknown,   // everything else: an error reply, a deadline, a cancellation, a lost connection
};

// Child -> owner: "I hold this fork." Answered with a Standing.
struct ForkAdd {
  RRefId rref;
  ForkId fork;
  rpc::AgentId creator;
  rpc::AgentId parent;       // who handed it over
  std::uint64_t serial = 0;  // not sent: by it the asking table knows the answer to this very question
};

// User -> owner: "I no longer hold this fork." Sent after its ForkAdd was answered. Answered with a Standing.
struct ForkDelete {
  RRefId rref;
  ForkId fork;
};

// Parent -> owner: "this fork is registered now or never." Sent when a hand-over's or a creation's fate is
// unknown. Answered with a Standing; afterwards no message, however late, can register the fork.
struct ForkFence {
  RRefId rref;
  ForkId fork;
};

// Owner -> user: "did the fork that I lent you arrive?" If not, the user refuses it from now on.
struct ForkProbe {
  RRefId rref;
  ForkId fork;
};

struct ProbeReply {
  bool held = false;  // false: not held now and never again
};

// Child -> parent: "the parent's fork need not be kept for this child." Answered with nothing.
struct ChildSettled {
  ForkId fork;
  bool by_owner = true;  // false: the child gave up before the owner decided, so the parent has to fence it
};

// Owner -> user: "there will be no object behind this fork." The fork stays, and is deleted as any other.
struct CreationFailed {
  RRefId rref;
  ForkId fork;
  std::string failure;
};

enum class Verdict : std::uint8_t {
  registered,  // the owner knows the fork
  ended,       // it does not, and never will (again)
  lease_lost,  // the asking agent was taken for dead: its forks are gone, its incarnation is refused for good
};

// The owner's answer: where a fork stands.
struct Standing {
  Verdict verdict = Verdict::registered;
  std::string creation_failure;  // not empty: registered, but the object's creation failed

  friend bool operator==(const Standing&, const Standing&) = default;
};

}  // namespace weft::rref::protocol
