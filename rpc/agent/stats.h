// AgentStats: what an agent has done so far and has under way, and what its layers tell of themselves, as it
// tells those who ask: the method `weft.stats`, and the same within the program.
//
// Answered on the loop, so also while every handler thread is busy. What only grows is counted since the
// agent was made: who asks twice has the rates between. Thread-safety: values.
#pragma once

#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/codec/struct_codec.h>

namespace weft::rpc {

inline constexpr std::string_view stats_method = "weft.stats";

struct MethodStats {
  std::string name;
  std::uint64_t accepted = 0, answered = 0, failed = 0;  // failed: of those answered, with an error
};
WEFT_CODEC(MethodStats, name, accepted, answered, failed)

struct AgentStats {
  std::string name;
  std::uint64_t incarnation = 0;
  double uptime = 0;              // seconds since the agent was made
  std::uint64_t connections = 0;  // now
  std::uint64_t connections_made = 0, connections_refused = 0;
  std::uint64_t calls_made = 0, calls_served = 0;  // calls_served: that came in, refused ones too
  std::uint64_t calls_denied = 0, calls_shed = 0;  // by permissions, for want of room
  std::uint64_t calls_retried = 0,
                peers_silent = 0;          // attempts after the first; connections without a heartbeat
  std::uint64_t exceptions_dropped = 0;    // of continuations, and of jobs of loops and handler threads
  std::uint64_t serving = 0, waiting = 0;  // under way: that came in (this one too), that went out
  std::uint64_t bytes_sent = 0, bytes_received = 0;  // of requests and replies
  std::uint64_t pool_hits = 0, pool_misses = 0,
                pool_bytes = 0;      // memory of arriving attachments; bytes: kept now
  std::vector<MethodStats> methods;  // that are served, by name
  // Now, by LAYER.WHAT: docs/observability.md lists those of weft's own layers. Of a layer that the agent
  // lacks there are none.
  LayerFigures layers;
};
WEFT_CODEC(AgentStats, name, incarnation, uptime, connections, connections_made, connections_refused,
           calls_made, calls_served, calls_denied, calls_shed, calls_retried, peers_silent, serving, waiting,
           bytes_sent, bytes_received, pool_hits, pool_misses, pool_bytes, methods, layers,
           exceptions_dropped)

class Agent;

// Of an agent of this program. Any thread.
WEFT_EXPORT AgentStats stats(const Agent& agent);

// Of any. not_found: an agent of a release before it.
WEFT_EXPORT Future<AgentStats> stats(const Peer& peer);

// What every agent serves.
WEFT_EXPORT MethodEntry stats_entry();

}  // namespace weft::rpc
