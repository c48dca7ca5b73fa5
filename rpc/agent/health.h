// Health: the state of an agent, for health checks. The method `weft.health` returns it.
//
// A loop serves the method, so the agent replies even while every handler thread is busy. A draining agent
// refuses new calls with `shut_down`, including calls of `weft.health`. Only a call of `weft.health` that
// arrived before the drain began returns "draining". Thread-safety: values.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

// The method that health() calls, and the values of Health::status.
inline constexpr std::string_view health_method = "weft.health";
inline constexpr std::string_view health_serving = "serving", health_draining = "draining";

struct Health {
  std::string status;  // health_serving or health_draining
  std::string name;    // of the agent
  std::uint64_t incarnation = 0;
  std::string version;            // of weft, "0.1.0"
  double uptime = 0;              // seconds since the agent was created
  std::int64_t calls_served = 0;  // calls of peers in flight, except this one
  std::int64_t calls_made = 0;    // calls of the agent in flight
};
WEFT_CODEC(Health, status, name, incarnation, version, uptime, calls_served, calls_made)

// The health of a peer. Fails with not_found if the peer has an older release of weft.
WEFT_EXPORT Future<Health> health(const Peer& peer);

WEFT_EXPORT MethodEntry health_entry();  // every agent serves this method

}  // namespace weft::rpc
