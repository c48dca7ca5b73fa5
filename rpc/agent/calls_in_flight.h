// CallsInFlight: a snapshot of the calls that an agent waits for and of the calls that it serves. The method
// `weft.pending` returns it. The reports of several agents show where a call hangs: a call has the same
// caller and id in the reports of both sides.
//
// A loop serves the method, so the agent replies even while every handler thread is busy. The agent's loops
// report one after another: a call that begins or completes meanwhile may be missing. Thread-safety: values;
// the functions may be called from any thread.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

// The method that calls_in_flight() calls, and the values of MadeCall::state.
inline constexpr std::string_view pending_method = "weft.pending";
inline constexpr std::string_view made_sent = "sent", made_connecting = "connecting", made_held = "held";

// Identifies a call on all agents: the caller, and the id that the caller gave the call.
struct CallName {
  std::string caller;
  std::uint64_t incarnation = 0;  // of the caller
  std::uint64_t id = 0;           // 0: no call
  friend auto operator<=>(const CallName&, const CallName&) = default;
};
WEFT_CODEC(CallName, caller, incarnation, id)

// A call that the agent has made and whose result it waits for.
struct MadeCall {
  std::uint64_t id = 0;
  std::string method;
  std::string peer;   // the peer's name, or its address while the name is unknown
  double age = 0;     // seconds, accurate to a few milliseconds
  std::string state;  // "sent", "connecting", "held" (the call waits for credit)
  double left = -1;   // seconds until the deadline; -1: no deadline
  CallName serving;   // the served call whose handler made this call; id 0: none
};
WEFT_CODEC(MadeCall, id, method, peer, age, state, left, serving)

// A call of a peer that the agent has accepted and not answered yet.
struct ServedCall {
  CallName call;
  std::string method;
  double age = 0;  // seconds since the call arrived, accurate to a few milliseconds
  // "preparing" (a layer has not confirmed the references in its arguments), "queued", "running", "suspended"
  // (the handler has returned or suspended without an answer, and occupies no thread)
  std::string state;
  // The queue in which the call waits or from which it runs: "object" (the object runs its calls one after
  // another), "handlers" (the agent's handler threads), "loop", "limit" (the limit of the method; only in
  // state "queued"). Empty: the call is in no queue yet.
  std::string on;
  std::uint64_t queue = 0;  // identifies the queue: calls in one queue have the same number
};
WEFT_CODEC(ServedCall, call, method, age, state, on, queue)

struct CallsInFlight {
  std::string name;  // of the agent
  std::uint64_t incarnation = 0;
  std::uint64_t handler_threads = 0;
  std::uint64_t silent_loops = 0;  // loops that did not answer within the timeout; their calls are missing
  std::vector<MadeCall> made;      // the oldest first
  std::vector<ServedCall> served;  // the oldest first, without the call that asks for this report
};
WEFT_CODEC(CallsInFlight, name, incarnation, handler_threads, silent_loops, made, served)

// Collects the calls of every loop of this agent. Blocks until all loops have answered, at most for
// `timeout`. Do not call it on a thread of the agent.
WEFT_EXPORT CallsInFlight calls_in_flight(const std::shared_ptr<AgentCore>& core,
                                          std::chrono::nanoseconds timeout);

// Fails with not_found if the peer has an older release of weft.
WEFT_EXPORT Future<CallsInFlight> calls_in_flight(const Peer& peer);

// The report as text.
WEFT_EXPORT std::string text_of(const CallsInFlight& calls);

// The method that every agent serves.
WEFT_EXPORT MethodEntry pending_entry();

}  // namespace weft::rpc
