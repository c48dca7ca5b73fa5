// CallsUnderWay: the calls that an agent waits for and those that it serves, at a moment: the method
// `weft.pending`. What hangs is found by asking all agents concerned: a call is the same on both sides by its
// caller and its id.
//
// Answered on the loop, so also while every handler thread is busy. The agent's loops tell one after the
// other of what is theirs: what begins or ends meanwhile may be in it or not. Thread-safety: values; the
// functions may be called from any thread.
#pragma once

#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/codec/struct_codec.h>

namespace weft::rpc {

inline constexpr std::string_view pending_method = "weft.pending";
inline constexpr std::string_view made_sent = "sent", made_connecting = "connecting", made_held = "held";

// One call, wherever it is spoken of: who made it, and the number that it has there.
struct CallName {
  std::string caller;
  std::uint64_t incarnation = 0;  // of the caller
  std::uint64_t id = 0;           // 0: no call
  friend auto operator<=>(const CallName&, const CallName&) = default;
};
WEFT_CODEC(CallName, caller, incarnation, id)

struct MadeCall {
  std::uint64_t id = 0;
  std::string method;
  std::string peer;   // its name; an address, while that is all that is known
  double age = 0;     // seconds, to a few milliseconds
  std::string state;  // "sent", "connecting", "held" (the peer gives no more credit)
  double left = -1;   // seconds until its deadline; -1: it has none
  CallName serving;   // the call in whose name it was made; id 0: none
};
WEFT_CODEC(MadeCall, id, method, peer, age, state, left, serving)

struct ServedCall {
  CallName call;
  std::string method;
  double age = 0;  // seconds since it came, to a few milliseconds
  // "preparing" (a layer holds it back: its references are not confirmed), "queued", "running", "suspended"
  // (its handler has returned, or waits, without an answer and without a thread)
  std::string state;
  // What it is queued for, or runs on: "object" (whose calls take turns), "handlers" (the agent's threads),
  // "loop", "limit" (of its method, only queued); empty: nothing yet.
  std::string on;
  std::uint64_t queue = 0;  // the same for calls of the same object
};
WEFT_CODEC(ServedCall, call, method, age, state, on, queue)

struct CallsUnderWay {
  std::string name;  // of the agent
  std::uint64_t incarnation = 0;
  std::uint64_t handler_threads = 0;
  std::uint64_t silent_loops = 0;  // that did not tell in time: their calls are missing
  std::vector<MadeCall> made;      // the oldest first
  std::vector<ServedCall> served;  // likewise; without the call that asks
};
WEFT_CODEC(CallsUnderWay, name, incarnation, handler_threads, silent_loops, made, served)

// Asks every loop of this agent; `done` is called on one of them, once all have told, which a loop that hangs
// does not. asking: a call that is left out.
WEFT_EXPORT void look_under_way(const std::shared_ptr<AgentCore>& core,
                                UniqueFunction<void(CallsUnderWay)> done,
                                const IncomingCall* asking = nullptr);
// The same, for at most so long, on a thread that is none of the agent's.
WEFT_EXPORT CallsUnderWay under_way_within(const std::shared_ptr<AgentCore>& core,
                                           std::chrono::nanoseconds timeout);

// not_found: an agent of a release before it.
WEFT_EXPORT Future<CallsUnderWay> calls_under_way(const Peer& peer);

// As lines for people.
WEFT_EXPORT std::string text_of(const CallsUnderWay& calls);

// What every agent serves.
WEFT_EXPORT MethodEntry pending_entry();

}  // namespace weft::rpc
