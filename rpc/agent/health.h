// Health: what an agent says of itself when it is asked whether it serves: the method `weft.health`.
//
// Answered on the loop, so also while every handler thread is busy. An agent that drains accepts no new
// calls, this one included: who asks it is told `shut_down`; only a question that came before is answered
// with "draining". Thread-safety: values.
#pragma once

#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/codec/struct_codec.h>

namespace weft::rpc {

inline constexpr std::string_view health_method = "weft.health";
inline constexpr std::string_view health_serving = "serving", health_draining = "draining";

struct Health {
  std::string status;  // health_serving or health_draining
  std::string name;    // of the agent
  std::uint64_t incarnation = 0;
  std::string version;            // of weft, "0.1.0"
  double uptime = 0;              // seconds since the agent was made
  std::int64_t calls_served = 0;  // under way, without this one
  std::int64_t calls_made = 0;    // calls of its own that are under way
};
WEFT_CODEC(Health, status, name, incarnation, version, uptime, calls_served, calls_made)

// Not found: an agent of a release before it.
WEFT_EXPORT Future<Health> health(const Peer& peer);

WEFT_EXPORT MethodEntry health_entry();  // every agent serves it

}  // namespace weft::rpc
