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
  peer.only_ = std::move(life);
  return peer;
}

Future<AgentId> Peer::ready() const {
  if (auto known = route_->identity()) return Future<AgentId>::made(std::move(*known));
  Promise<AgentId> promise(route_->loop());
  auto future = promise.future();
  OutgoingCall call = make_call(ping_method, 0);
  call.begin();
  call.end();
  start(std::move(call),
        [promise = std::move(promise), route = route_](Result<PendingCall::Reply> reply) mutable {
          if (!reply.ok()) return promise.fail(reply.error());
          promise.complete(route->identity().value());
        });
  return future;
}

OutgoingCall Peer::make_call(std::string_view method, std::size_t arguments) const {
  OutgoingCall call(method, name_hash(method), arguments);
  if (options_.deadline) call.deadline = later(route_->loop()->now(), *options_.deadline);
  call.only = only_;
  call.message().set_route(&core_->layers(), only_ ? only_ : route_->identity());
  if (serving_ != nullptr) core_->hand_on(*serving_, call);
  return call;
}

std::shared_ptr<PendingCall> Peer::start(OutgoingCall call, PendingCall::Done done) const {
  if (serving_ == nullptr) return core_->start(std::move(call), route_, std::move(done));
  // The cancellation of the call that is served reaches this one, as long as it is under way.
  struct Nested {
    std::mutex mutex;  // guards pending, cancelled
    std::weak_ptr<PendingCall> pending;
    bool cancelled = false;
    CallContext::CancelJobId job = 0;
  };
  auto nested = std::make_shared<Nested>();
  nested->job = serving_->on_cancel([route = route_, nested] {
    std::unique_lock lock(nested->mutex);
    nested->cancelled = true;
    auto pending = nested->pending.lock();
    lock.unlock();
    if (pending != nullptr) route->cancel(std::move(pending));
  });
  bool too_late = false;
  {
    std::lock_guard lock(nested->mutex);
    too_late = nested->cancelled;
  }
  if (too_late) {  // nobody wants its result: it is not sent
    done(std::make_exception_ptr(Error(ErrorKind::cancelled,
                                       route_->peer_name() + ": " + std::string(call.method()) +
                                           ": the call that it serves was cancelled (was not sent)",
                                       Execution::not_sent)));
    return nullptr;
  }
  auto pending = core_->start(std::move(call), route_,
                              [nested, serving = std::weak_ptr(serving_),
                               done = std::move(done)](Result<PendingCall::Reply> reply) mutable {
                                if (const auto context = serving.lock()) context->forget_cancel(nested->job);
                                done(std::move(reply));
                              });
  std::unique_lock lock(nested->mutex);
  nested->pending = pending;
  if (nested->cancelled) route_->cancel(pending);
  return pending;
}

}  // namespace weft::rpc
