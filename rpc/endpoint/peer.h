// Peer: a handle to a remote agent, for calls of its methods. Agent::peer() and Agent::connect() create it.
//
// Cheap to copy. Handles share the route to the peer, not a connection: the first call connects. with()
// returns a handle whose calls have options or metadata, or are made on behalf of a call that is being
// served. Handles accumulate options: `peer.with({.timeout = 1s}).with({.idempotent = true})` has both. Calls
// of one caller reach the peer in the order in which the caller made them, except calls that wait for the
// RRefs among their arguments. Thread-safe. PeerCalls is for layers: programs use Peer, below.
#pragma once

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/call/retried_call.h>
#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/endpoint/route.h>

namespace weft::rpc {

class AgentCore;

namespace detail {

inline void ping() {}

}  // namespace detail

// A method without effect, which every agent serves. peer.call<Ping>() completes once the peer has answered.
using Ping = Function<"weft.ping", &detail::ping>;

// The future of a notification, which may be dropped.
class Notified : public Future<void> {
 public:
  explicit Notified(Future<void>&& future) : Future<void>(std::move(future)) {}
};

// For layers: makes the calls of a Peer, from their methods' names and encoded arguments. Thread-safe.
class WEFT_EXPORT PeerCalls {
 public:
  PeerCalls(std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route)
      : core_(std::move(core)), route_(std::move(route)) {}

  // The agent that makes the calls, and the path to the peer.
  const std::shared_ptr<AgentCore>& core() const { return core_; }
  const std::shared_ptr<Route>& route() const { return route_; }

  // A call with the options of the peer's handle. Encode its arguments between begin() and end().
  OutgoingCall make(std::string_view method, std::size_t arguments) const {
    return make(method, name_hash(method), arguments);
  }
  OutgoingCall make(std::string_view method, std::uint64_t id, std::size_t arguments) const;
  // For a call of the program: sets the agent's default timeout if the handle has none.
  void add_default_timeout(OutgoingCall& call) const;
  // Sends the call, with retries if its options and contents permit them. done: called once, at the end of
  // the call, on the thread that ended it.
  using Done = UniqueFunction<void(Result<PendingCall::Reply>)>;
  void start(OutgoingCall&& call, Done done) const;

  // Sends the call like start(), and returns a future of the decoded reply. Decoder: Result<Reply>&& ->
  // Result<Value>.
  template <class Value, class Decoder>
  Future<Value> start_typed(OutgoingCall&& call, Decoder decode) const {
    Promise<Value> promise(route_->loop());
    Future<Value> future = promise.future();
    using Complete = CompletePromise<Value, Decoder>;
    Complete complete{std::move(promise), std::move(decode)};
    if (RetriedCall::applies(call)) {
      const auto held = std::make_shared<Complete>(std::move(complete));
      const auto whole =
          with_retries(std::move(call), [held](Result<PendingCall::Reply> reply, const PendingCall& attempt) {
            (*held)(std::move(reply), attempt);
          });
      held->promise.on_request(requests<RetriedCall>(whole, &RetriedCall::cancel));
      whole->begin();
    } else {
      auto pending =
          std::make_shared<CallWith<Complete>>(std::move(call), host(), route_, std::move(complete));
      pending->when_done().promise.on_request(requests<PendingCall>(
          pending, [](const std::shared_ptr<PendingCall>& call) { call->route()->cancel(call); }));
      submit(std::move(pending));
    }
    return future;
  }

  // Calls a method of weft itself that has no parameters. The call has no default deadline.
  template <class Value>
  Future<Value> ask(std::string_view method) const {
    OutgoingCall call = make(method, 0);
    call.begin();
    call.end();
    return start_typed<Value>(std::move(call), DecodeReply<Value>{});
  }

  // A call of the program, of the method Found (FoundMethod, or a Function).
  template <class Found, class... Given>
  auto call(Given&&... given) const {
    using Value = typename Found::Type::Traits::Result;
    return start_typed<Value>(typed<Found>(false, std::forward<Given>(given)...), DecodeReply<Value>{});
  }
  template <class Found, class... Given>
  Notified notify(Given&&... given) const {
    return Notified(
        start_typed<void>(typed<Found>(true, std::forward<Given>(given)...), DecodeReply<void>{}));
  }

 private:
  friend class Peer;

  template <class Found, class... Given>
  OutgoingCall typed(bool notify, Given&&... given) const {
    OutgoingCall call = make(Found::name, Found::id, count_sent<Given...>);
    call.notify = call.acknowledged = notify;
    add_default_timeout(call);
    add_default_retry(call);  // calls of layers have no default RetryPolicy
    encode_call<typename Found::Type>(call, std::forward<Given>(given)...);
    return call;
  }

  // Handles the requests of the consumers of the call's future.
  template <class Call, class Cancel>
  static auto requests(std::weak_ptr<Call> weak, Cancel cancel) {
    return [weak = std::move(weak), cancel](WorkRequest request) {
      const auto call = weak.lock();
      if (call == nullptr) return std::string();
      if (request == WorkRequest::title) return call->title();
      std::invoke(cancel, call);
      return std::string();
    };
  }
  std::shared_ptr<RetriedCall> with_retries(OutgoingCall call, RetriedCall::Done done) const;
  void submit(std::shared_ptr<PendingCall> call) const;  // once, without retries
  void add_default_retry(OutgoingCall& call) const;
  const CallHost& host() const;
  PendingCall::CancelSources cancel_sources() const { return {serving_, scope_}; }

  std::shared_ptr<AgentCore> core_;
  std::shared_ptr<Route> route_;
  CallOptions options_;
  Metadata metadata_;
  std::shared_ptr<const AgentId> only_;
  std::shared_ptr<CallContext> serving_;
  std::shared_ptr<CancelSource> scope_;
};

class WEFT_EXPORT Peer {
 public:
  Peer(std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route)
      : calls_(std::move(core), std::move(route)) {}

  const std::string& name() const { return calls_.route()->name(); }  // or the requested address
  Peer with(CallOptions options) const;  // options that are not set keep their values
  // Adds metadata to calls; other keys keep their values. An interceptor may replace values. In a co_await
  // expression, pass a named variable: g++ 12 does not compile a braced list there.
  Peer with_metadata(Metadata metadata) const;
  // The calls of the returned handle have the deadline, cancellation and sections of `serving`.
  Peer with(CallContext& serving) const;
  Peer with(const CancelScope& scope) const;  // scope.cancel() cancels the calls
  Peer only(AgentId id) const;                // calls fail with peer_lost if the peer has another incarnation
  // Connects if there is no connection, and returns the peer's incarnation. identity(): the incarnation, if
  // it is known already.
  Future<AgentId> ready() const;
  std::optional<AgentId> identity() const;

  // Starts the call and returns a future of its result. Leading arguments that are CallModifiers (a pass)
  // change the call. Do not pass Type: it is a workaround for a defect of g++ (MethodOf in
  // rpc/call/method.h).
  template <auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return calls_.call<FoundMethod<Target>>(std::forward<Given>(given)...);
  }
  // For a method that T's service lists and T inherits. T is needed because the type of &T::f contains only
  // the base class.
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return calls_.call<FoundMethod<Target, Type, T>>(std::forward<Given>(given)...);
  }
  // For a free function.
  template <NamedFunction F, class... Given>
  auto call(Given&&... given) const {
    return calls_.call<F>(std::forward<Given>(given)...);
  }
  // A call without a reply: neither results nor errors of the method are returned. The future completes when
  // the callee has accepted the call, and may be dropped.
  template <auto Target, class... Given, class Type = decltype(Target)>
  Notified notify(Given&&... given) const {
    return calls_.notify<FoundMethod<Target>>(std::forward<Given>(given)...);
  }
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  Notified notify(Given&&... given) const {
    return calls_.notify<FoundMethod<Target, Type, T>>(std::forward<Given>(given)...);
  }
  template <NamedFunction F, class... Given>
  Notified notify(Given&&... given) const {
    return calls_.notify<F>(std::forward<Given>(given)...);
  }

  const PeerCalls& calls() const { return calls_; }  // for layers

 private:
  PeerCalls calls_;
};

}  // namespace weft::rpc
