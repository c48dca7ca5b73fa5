#include <weft/rpc/endpoint/dynamic_call.h>

namespace weft::rpc {

Future<DynamicReply> call_by_name(const Peer& peer, std::string_view method, std::size_t arguments,
                                  const std::function<void(OutgoingMessage&)>& encode,
                                  DynamicCallOptions options) {
  OutgoingCall call = peer.calls().make(method, arguments);
  peer.calls().add_default_timeout(call);
  call.signature = options.signature;
  call.notify = call.acknowledged = options.notify;
  call.begin();
  if (encode) encode(call.message());
  call.end();
  return peer.calls().start_typed<DynamicReply>(
      std::move(call), [](Result<PendingCall::Reply>&& reply) -> Result<DynamicReply> {
        if (!reply.ok()) return reply.error();
        return DynamicReply{std::move(reply).get()};
      });
}

}  // namespace weft::rpc
