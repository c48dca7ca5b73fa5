#include <weft/rpc/agent/stats.h>

#include <weft/rpc/agent/agent.h>

#include <algorithm>

namespace weft::rpc {
namespace {

AgentStats stats_of(AgentCore& core) {
  const AgentCounts counts = core.counts();
  AgentStats stats;
  stats.name = core.id().name;
  stats.incarnation = core.id().incarnation;
  stats.uptime = core.uptime().count();
  stats.connections = counts.connections;
  stats.connections_made = counts.connections_made;
  stats.connections_refused = counts.connections_refused;
  stats.calls_made = counts.calls_made;
  stats.calls_served = counts.calls_served;
  stats.calls_denied = counts.calls_denied;
  stats.calls_shed = counts.calls_shed;
  stats.calls_retried = counts.calls_retried;
  stats.peers_silent = counts.peers_silent;
  stats.exceptions_dropped = counts.exceptions_dropped;
  stats.serving = counts.serving;
  stats.waiting = counts.waiting;
  stats.bytes_sent = counts.bytes_sent;
  stats.bytes_received = counts.bytes_received;
  stats.pool_hits = counts.memory.hits;
  stats.pool_misses = counts.memory.misses;
  stats.pool_bytes = counts.memory.kept_bytes;
  for (const auto& entry : core.methods().all()) {
    // Answered first: never more than were accepted.
    MethodStats method{entry->name, 0, entry->counters->answered, entry->counters->failed};
    method.accepted = entry->counters->accepted;
    method.failed = std::min(method.failed, method.answered);
    stats.methods.push_back(std::move(method));
  }
  std::sort(stats.methods.begin(), stats.methods.end(),
            [](const MethodStats& a, const MethodStats& b) { return a.name < b.name; });
  stats.layers = core.hooks().figures();
  return stats;
}

}  // namespace

AgentStats stats(const Agent& agent) { return stats_of(*agent.core()); }

MethodEntry stats_entry() {
  using Traits = detail::HandlerTraits<AgentStats (*)()>;
  MethodEntry entry;
  entry.name = stats_method;
  entry.id = name_hash(stats_method);
  entry.signature = Traits::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.result = type_text<AgentStats>();
  entry.idempotent = entry.non_blocking = true;
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    call->reply([&](ValueWriter writer) { Codec<AgentStats>::encode(writer, stats_of(*call->core())); });
  };
  return entry;
}

Future<AgentStats> stats(const Peer& peer) {
  OutgoingCall call = peer.make_call(stats_method, 0);
  call.begin();
  call.end();
  return peer.start_typed<AgentStats>(
      std::move(call), [route = peer.route()](Result<PendingCall::Reply>&& reply) {
        return Peer::decode<AgentStats>(std::move(reply), stats_method, route.get());
      });
}

}  // namespace weft::rpc
