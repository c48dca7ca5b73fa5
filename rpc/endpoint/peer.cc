#include <weft/rpc/endpoint/peer.h>

#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>

namespace weft::rpc {

Peer Peer::with(CallOptions options) const {
  Peer peer = *this;
  peer.calls_.options_.merge(options);
  return peer;
}

Peer Peer::with_metadata(Metadata metadata) const {
  Peer peer = *this;
  metadata.merge(peer.calls_.metadata_);  // for keys in both, keeps the values of `metadata`
  peer.calls_.metadata_ = std::move(metadata);
  return peer;
}

Peer Peer::with(CallContext& serving) const {
  Peer peer = *this;
  peer.calls_.serving_ = serving.shared_from_this();
  return peer;
}

Peer Peer::with(const CancelScope& scope) const {
  Peer peer = *this;
  peer.calls_.scope_ = scope.source();
  return peer;
}

const CallHost& PeerCalls::host() const { return *core_; }

std::shared_ptr<RetriedCall> PeerCalls::with_retries(OutgoingCall call, RetriedCall::Done done) const {
  return std::make_shared<RetriedCall>(std::move(call), core_, route_, cancel_sources(), std::move(done));
}

void PeerCalls::add_default_retry(OutgoingCall& call) const {
  if (call.retry == nullptr) call.retry = core_->default_retry();
}

Peer Peer::only(AgentId id) const {
  Peer peer = *this;
  peer.calls_.only_ = std::make_shared<const AgentId>(std::move(id));
  return peer;
}

Future<AgentId> Peer::ready() const {
  if (const auto known = identity(); known && calls_.core()->sessions().is_connected(*known))
    return Future<AgentId>::made(*known);
  return calls_.ask<void>(Ping::name).then([route = calls_.route()](Result<void>&& reply) -> Result<AgentId> {
    if (!reply.ok()) return reply.error();
    if (const auto peer = route->identity()) return *peer;
    return Error(ErrorKind::peer_lost, route->peer_name() + ": the incarnation that replied is gone");
  });
}

std::optional<AgentId> Peer::identity() const {
  const auto known = calls_.route()->identity();
  return known != nullptr ? std::optional(*known) : std::nullopt;
}

OutgoingCall PeerCalls::make(std::string_view method, std::uint64_t id, std::size_t arguments) const {
  OutgoingCall call(method, id, arguments);
  if (options_.timeout && *options_.timeout != no_timeout)
    call.deadline = later(route_->loop()->now(), *options_.timeout);
  call.only = only_;
  call.message().set_route(&core_->layers(), route_.get());
  if (only_ != nullptr) call.message().set_destination(only_);
  call.idempotent = options_.idempotent.value_or(false);
  call.wait_for_ready = options_.wait_for_ready.value_or(false);
  call.fail_fast = options_.fail_fast.value_or(false);
  call.connect_within = options_.connect_within;
  if (options_.retry) call.retry = std::make_shared<const RetryPolicy>(*options_.retry);
  for (const auto& [key, value] : metadata_) call.set_metadata(key, value);
  call.serving = serving_;
  if (serving_ != nullptr) core_->hooks().propagate(*serving_, call);
  for (const auto& interceptor : core_->hooks().interceptors())
    if (auto watch = interceptor->calling(call, route_->peer_name(), serving_.get()))
      call.add_watch(std::move(watch));
  return call;
}

void PeerCalls::add_default_timeout(OutgoingCall& call) const {
  if (options_.timeout) return;
  const auto limit = core_->default_timeout();
  if (limit == no_timeout) return;
  const auto deadline = later(route_->loop()->now(), limit);
  if (!call.deadline || deadline < *call.deadline) call.deadline = deadline;
}

void PeerCalls::start(OutgoingCall&& call, Done done) const {
  auto ended = [done = std::move(done)](Result<PendingCall::Reply> reply, const PendingCall&) mutable {
    done(std::move(reply));
  };
  if (RetriedCall::applies(call)) return with_retries(std::move(call), std::move(ended))->begin();
  submit(std::make_shared<CallWith<decltype(ended)>>(std::move(call), *core_, route_, std::move(ended)));
}

void PeerCalls::submit(std::shared_ptr<PendingCall> call) const {
  if (call->refuse_excess()) return;
  if ((serving_ != nullptr || scope_ != nullptr) && !PendingCall::serve(call, cancel_sources())) return;
  route_->submit(std::move(call));
}

}  // namespace weft::rpc
