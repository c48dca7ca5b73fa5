#include <weft/rpc/agent/stats.h>

#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>

namespace weft::rpc {
namespace {

AgentStats stats_of(AgentCore& core) {
  AgentStats stats{core.counts()};
  stats.name = core.id().name;
  stats.incarnation = core.id().incarnation;
  stats.uptime = core.uptime().count();
  stats.pool_hits = stats.memory.hits;
  stats.pool_misses = stats.memory.misses;
  stats.pool_bytes = stats.memory.kept_bytes;
  for (const auto& entry : core.methods().all()) {
    // `answered` is read first, so that it never exceeds `accepted`.
    MethodStats method{entry->name, 0, entry->counters->answered, entry->counters->failed};
    method.accepted = entry->counters->accepted;
    method.failed = std::min(method.failed, method.answered);
    stats.methods.push_back(std::move(method));
  }
  stats.layers = core.hooks().stats();
  if (const auto* gauges = core.layers().find<Gauges>()) stats.gauges = gauges->values();
  return stats;
}

}  // namespace

AgentStats stats(const Agent& agent) { return stats_of(*agent.core()); }

MethodEntry stats_entry() {
  return detail::own_method<AgentStats>(
      stats_method, [](const IncomingCall& call) { return stats_of(*AgentCore::of(call)); });
}

Future<AgentStats> stats(const Peer& peer) { return peer.calls().ask<AgentStats>(stats_method); }

Layer Gauges::layer() {
  return [self = shared_from_this()](Agent& agent) { agent.core()->layers().put(self); };
}

void Gauges::set(const std::string& name, double value) {
  const MutexLock lock(mutex_);
  values_[name] = value;
}

void Gauges::remove(const std::string& name) {
  const MutexLock lock(mutex_);
  values_.erase(name);
}

std::map<std::string, double> Gauges::values() const {
  const MutexLock lock(mutex_);
  return values_;
}

}  // namespace weft::rpc
