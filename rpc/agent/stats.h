// AgentStats: the counters of an agent, the number of its calls in flight, and the figures of its layers.
// Peers get it from the method `weft.stats`, the agent's own program from stats().
//
// A loop serves the method, so the agent replies even while every handler thread is busy. Counters start at 0
// when the agent is created; compute rates from the difference of two reports. Thread-safety: values.
#pragma once

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

// A counter is sent as a number.
template <>
struct Codec<Counter> : Codec<std::uint64_t> {};

// The method that stats() calls.
inline constexpr std::string_view stats_method = "weft.stats";

// The calls of one method since the agent began to serve it, counted as in MethodCounters.
struct MethodStats {
  std::string name;
  std::uint64_t accepted = 0, answered = 0, failed = 0;  // failed: answered with an error
};
WEFT_CODEC(MethodStats, name, accepted, answered, failed)

// In the report of a peer, the counters that the codec omits are 0.
struct AgentStats : AgentCounts {
  std::string name;
  std::uint64_t incarnation = 0;
  double uptime = 0;  // seconds since the agent was created
  // The pool of memory for arriving attachments (MemoryPool). pool_bytes: bytes that the pool keeps now.
  std::uint64_t pool_hits = 0, pool_misses = 0, pool_bytes = 0;
  std::vector<MethodStats> methods;  // the served methods, by name
  // The current figures of the layers, by name: "LAYER.FIGURE". docs/observability.md lists the figures of
  // weft's own layers.
  LayerStats layers;
  std::map<std::string, double> gauges;  // the program's gauges (gauges.h)
};
WEFT_CODEC(AgentStats, name, incarnation, uptime, connections, connections_made, connections_refused,
           calls_made, calls_served, calls_denied, calls_shed, calls_retried, peers_silent, serving, waiting,
           bytes_sent, bytes_received, pool_hits, pool_misses, pool_bytes, methods, layers,
           exceptions_dropped, gauges)

class Agent;

// The report of an agent of this process. May be called from any thread.
WEFT_EXPORT AgentStats stats(const Agent& agent);

// The report of any agent. Fails with not_found if the peer has an older release of weft.
WEFT_EXPORT Future<AgentStats> stats(const Peer& peer);

// The method that every agent serves.
WEFT_EXPORT MethodEntry stats_entry();

}  // namespace weft::rpc
