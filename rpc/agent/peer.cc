#include <weft/rpc/agent/peer.h>

namespace weft::rpc {

Peer Peer::with(CallOptions options) const {
  Peer peer = *this;
  peer.options_ = options;
  return peer;
}

Peer Peer::with(CallContext& serving) const {
  Peer peer = *this;
  peer.serving_ = serving.shared_from_this();
  return peer;
}

Peer Peer::only(AgentId life) const {
  Peer peer = *this;
  peer.only_ = std::make_shared<const AgentId>(std::move(life));
  return peer;
}

Future<AgentId> Peer::ready() const {
  if (const auto known = route_->identity()) return Future<AgentId>::made(*known);
  Promise<AgentId> promise(route_->loop());
  auto future = promise.future();
  OutgoingCall call = make_call(ping_method, 0);
  call.begin();
  call.end();
  start(std::move(call),
        [promise = std::move(promise), route = route_](Result<PendingCall::Reply> reply) mutable {
          if (!reply.ok()) return promise.fail(reply.error());
          promise.complete(AgentId(*route->identity()));
        });
  return future;
}

OutgoingCall Peer::make_call(std::string_view method, std::uint64_t id, std::size_t arguments) const {
  OutgoingCall call(method, id, arguments);
  if (options_.deadline) call.deadline = later(route_->loop()->now(), *options_.deadline);
  call.only = only_;
  call.message().set_route(&core_->layers(), route_.get());
  if (only_ != nullptr) call.message().set_destination(only_);
  if (serving_ != nullptr) core_->hand_on(*serving_, call);
  return call;
}

void Peer::start(OutgoingCall call, CallbackCall::Done done) const {
  submit(std::make_shared<CallbackCall>(std::move(call), core_, route_, std::move(done)));
}

void Peer::submit(std::shared_ptr<PendingCall> call) const {
  if (serving_ != nullptr && !PendingCall::serve(call, serving_)) return;
  route_->submit(std::move(call));
}

}  // namespace weft::rpc
