#include <weft/rpc/agent/health.h>

#include <weft/rpc/endpoint/agent_core.h>

#ifndef WEFT_VERSION
#error "the build defines WEFT_VERSION for this file: CMakeLists.txt"
#endif

namespace weft::rpc {

MethodEntry health_entry() {
  return detail::own_method<Health>(health_method, [](const IncomingCall& call) {
    const auto core = AgentCore::of(call);
    Health health;
    health.status = core->draining() ? health_draining : health_serving;
    health.name = core->id().name;
    health.incarnation = core->id().incarnation;
    health.version = WEFT_VERSION;
    health.uptime = core->uptime().count();
    health.calls_served = core->accounts()->served() - 1;
    health.calls_made = core->accounts()->made();
    return health;
  });
}

Future<Health> health(const Peer& peer) { return peer.calls().ask<Health>(health_method); }

}  // namespace weft::rpc
