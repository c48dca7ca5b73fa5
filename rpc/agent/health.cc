#include <weft/rpc/agent/health.h>

#ifndef WEFT_VERSION
#error "the build defines WEFT_VERSION for this file: CMakeLists.txt"
#endif

namespace weft::rpc {

MethodEntry health_entry(AgentCore& core) {
  using Traits = detail::HandlerTraits<Health (*)()>;
  MethodEntry entry;
  entry.name = health_method;
  entry.id = name_hash(health_method);
  entry.signature = Traits::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.result = type_text<Health>();
  entry.idempotent = entry.non_blocking = true;
  entry.run = [made = core.pick_loop()->now()](std::shared_ptr<IncomingCall> call) {
    AgentCore& core = *call->core();
    Health health;
    health.status = core.draining() ? health_draining : health_serving;
    health.name = core.id().name;
    health.incarnation = core.id().incarnation;
    health.version = WEFT_VERSION;
    health.uptime = std::chrono::duration<double>(core.pick_loop()->now() - made).count();
    health.calls_served = core.accounts()->served() - 1;
    health.calls_made = core.accounts()->made();
    call->reply([&](ValueWriter writer) { Codec<Health>::encode(writer, health); });
  };
  return entry;
}

Future<Health> health(const Peer& peer) {
  OutgoingCall call = peer.make_call(health_method, 0);
  call.begin();
  call.end();
  return peer.start_typed<Health>(std::move(call),
                                  [route = peer.route()](Result<PendingCall::Reply>&& reply) {
                                    return Peer::decode<Health>(std::move(reply), health_method, route.get());
                                  });
}

}  // namespace weft::rpc
