// CallsInFlight: the calls that an agent waits for and the calls that it serves, at one moment: the method
// `weft.pending`. The reports of several agents show where a call hangs: a call has the same caller and id on
// both sides.
//
// A loop serves the method, so it replies while every handler thread is busy. The agent's loops report one
// after another: a call that begins or completes meanwhile may be missing. Thread-safety: values; the
// functions may be called from any thread.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

// The method that calls_in_flight() calls, and the values of MadeCall::state.
inline constexpr std::string_view pending_method = "weft.pending";
inline constexpr std::string_view made_sent = "sent", made_connecting = "connecting", made_held = "held";

// The name of a call on all agents: its caller, and its number there.
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
  std::string peer;   // its name; its address while the name is unknown
  double age = 0;     // seconds, to a few milliseconds
  std::string state;  // "sent", "connecting", "held" (waits for credit)
  double left = -1;   // seconds until its deadline; -1: it has none
  CallName serving;   // the served call whose handler made it; id 0: none
};
WEFT_CODEC(MadeCall, id, method, peer, age, state, left, serving)

// A call of a peer that the agent has accepted and not answered yet.
struct ServedCall {
  CallName call;
  std::string method;
  double age = 0;  // seconds since it arrived, to a few milliseconds
  // "preparing" (waits for a layer: its references are not confirmed), "queued", "running", "suspended" (the
  // handler has returned or suspended without an answer, and occupies no thread)
  std::string state;
  // The queue in which it waits or from which it runs: "object" (its calls run one by one), "handlers" (the
  // agent's threads), "loop", "limit" (of its method, only queued); empty: none yet.
  std::string on;
  std::uint64_t queue = 0;  // the same for calls of the same object
};
WEFT_CODEC(ServedCall, call, method, age, state, on, queue)

struct CallsInFlight {
  std::string name;  // of the agent
  std::uint64_t incarnation = 0;
  std::uint64_t handler_threads = 0;
  std::uint64_t silent_loops = 0;  // did not answer within the timeout: their calls are missing
  std::vector<MadeCall> made;      // the oldest first
  std::vector<ServedCall> served;  // likewise; without this request
};
WEFT_CODEC(CallsInFlight, name, incarnation, handler_threads, silent_loops, made, served)

// Collects the calls of every loop of this agent. `done` is called on one of the loops when all have
// answered, and never if a loop hangs. asking: a call to omit.
WEFT_EXPORT void collect_calls_in_flight(const std::shared_ptr<AgentCore>& core,
                                         UniqueFunction<void(CallsInFlight)> done,
                                         const IncomingCall* asking = nullptr);
// Blocks until all loops have answered, at most for `timeout`. Do not call it on a thread of the agent.
WEFT_EXPORT CallsInFlight calls_in_flight(const std::shared_ptr<AgentCore>& core,
                                          std::chrono::nanoseconds timeout);

// not_found: the agent has an older release of weft.
WEFT_EXPORT Future<CallsInFlight> calls_in_flight(const Peer& peer);

// The report as text.
WEFT_EXPORT std::string text_of(const CallsInFlight& calls);

// The method that every agent serves.
WEFT_EXPORT MethodEntry pending_entry();

}  // namespace weft::rpc
