// AgentStats: the counters of an agent, the number of its calls in flight, and the figures of its layers.
// Peers get it from the method `weft.stats`, the agent's own program from stats(). Gauges: numbers that a
// program adds to it.
//
// A loop serves the method, so the agent replies even while every handler thread is busy. Counters start at 0
// when the agent is created; compute rates from the difference of two reports. Thread-safety: values, except
// Gauges.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>

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
  std::map<std::string, double> gauges;  // the program's gauges (Gauges)
};
WEFT_CODEC(AgentStats, name, incarnation, uptime, connections, connections_made, connections_refused,
           calls_made, calls_served, calls_denied, calls_shed, calls_retried, peers_silent, serving, waiting,
           bytes_sent, bytes_received, pool_hits, pool_misses, pool_bytes, methods, layers,
           exceptions_dropped, gauges)

// The report of an agent of this process. May be called from any thread.
WEFT_EXPORT AgentStats stats(const Agent& agent);

// The report of any agent. Fails with not_found if the peer has an older release of weft.
WEFT_EXPORT Future<AgentStats> stats(const Peer& peer);

// The method that every agent serves.
WEFT_EXPORT MethodEntry stats_entry();

// Numbers that a program publishes by name, for example its training loss. A gauge keeps its latest value
// only.
//
//   auto gauges = std::make_shared<rpc::Gauges>();
//   rpc::Agent agent{options, {gauges->layer()}};
//   gauges->set("loss", 0.31);
//
// AgentStats::gauges contains the gauges, so `weft top` and `weft dash` show them. observe::Metrics publishes
// the gauges as the metric `weft_gauge`. Several agents may share one Gauges object. An agent publishes one
// Gauges object: the one whose layer was installed last. The object does not refer to its agents, and may
// outlive them. Thread-safe.
class WEFT_EXPORT Gauges : public std::enable_shared_from_this<Gauges> {
 public:
  // The layer that publishes the gauges with the agent's stats.
  Layer layer();

  // Creates the gauge, or replaces its value. value: any double, including NaN.
  void set(const std::string& name, double value);
  // Removes the gauge of that name. No effect if it does not exist.
  void remove(const std::string& name);
  // A copy of all gauges, by name.
  std::map<std::string, double> values() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, double> values_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
