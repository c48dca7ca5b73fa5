// Peer: a handle to a remote agent, for calls of its methods. Agent::peer() and Agent::connect() create it.
//
// Cheap to copy. Handles share the route to the peer, not a connection: the first call connects. with()
// returns a handle whose calls have options or metadata, or are made on behalf of a call that is being
// served. Handles accumulate options: `peer.with({.timeout = 1s}).with({.idempotent = true})` has both. Calls
// of one caller reach the peer in the order in which the caller made them, except calls that wait for the
// RRefs among their arguments. Thread-safe.
#pragma once

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/call/retried_call.h>
#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/endpoint/route.h>

namespace weft::rpc {

class AgentCore;

namespace detail {

template <class Given>
inline constexpr bool is_modifier = std::is_base_of_v<CallModifier, std::decay_t<Given>>;

// The hash of the signature, computed once for each method.
template <class Traits>
std::uint64_t signature_hash() {
  static const std::uint64_t hash = name_hash(Traits::text());
  return hash;
}

struct NoService {
  using Service = rpc::Service<"">;
};

}  // namespace detail

// A method without effect, which every agent serves.
inline constexpr std::string_view ping_method = "weft.ping";

// The future of a notification, which may be dropped.
class Notified : public Future<void> {
 public:
  explicit Notified(Future<void>&& future) : Future<void>(std::move(future)) {}
};

class WEFT_EXPORT Peer {
 public:
  Peer(std::shared_ptr<AgentCore> core, std::shared_ptr<Route> route)
      : core_(std::move(core)), route_(std::move(route)) {}

  const std::string& name() const { return route_->name(); }  // the peer's name, or the requested address
  Peer with(CallOptions options) const;                       // options that are not set keep their values
  // Adds metadata to calls; other keys keep their values. An interceptor may replace values. In a co_await
  // expression, pass a named variable: g++ 12 does not compile a braced list there.
  Peer with_metadata(Metadata metadata) const;
  // The calls of the returned handle have the deadline, cancellation and sections of `serving`.
  Peer with(CallContext& serving) const;
  Peer with(const CancelScope& scope) const;  // scope.cancel() cancels the calls
  // Connects if there is no connection, and returns the peer's incarnation. identity(): the incarnation, if
  // it is known already.
  Future<AgentId> ready() const;
  std::optional<AgentId> identity() const {
    const auto known = route_->identity();
    return known != nullptr ? std::optional(*known) : std::nullopt;
  }
  Peer only(AgentId id) const;  // calls fail with peer_lost if the peer has another incarnation

  // Starts the call and returns a future of its result. Leading arguments that are CallModifiers (a pass)
  // change the call. Do not pass Type: it is a workaround for a defect of g++ (MethodOf in
  // rpc/call/method.h).
  template <auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    using Found = FoundMethod<Target>;
    return typed_call<typename Found::Type>(Found::name, Found::id, std::forward<Given>(given)...);
  }
  // For a method that T's service lists and T inherits. T is needed because the type of &T::f contains only
  // the base class.
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    using Found = FoundMethod<Target, Type, T>;
    return typed_call<typename Found::Type>(Found::name, Found::id, std::forward<Given>(given)...);
  }
  // For a free function.
  template <NamedFunction F, class... Given>
  auto call(Given&&... given) const {
    return typed_call<F>(F::name, name_hash(F::name), std::forward<Given>(given)...);
  }
  // A call without a reply: neither results nor errors of the method are returned. The future completes when
  // the callee has accepted the call, and may be dropped.
  template <auto Target, class... Given, class Type = decltype(Target)>
  Notified notify(Given&&... given) const {
    using Found = FoundMethod<Target>;
    return typed_notify<typename Found::Type>(Found::name, Found::id, std::forward<Given>(given)...);
  }
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  Notified notify(Given&&... given) const {
    using Found = FoundMethod<Target, Type, T>;
    return typed_notify<typename Found::Type>(Found::name, Found::id, std::forward<Given>(given)...);
  }
  template <NamedFunction F, class... Given>
  Notified notify(Given&&... given) const {
    return typed_notify<F>(F::name, name_hash(F::name), std::forward<Given>(given)...);
  }

  // For layers: a call with the options of this handle. Encode its arguments between begin() and end().
  OutgoingCall make_call(std::string_view method, std::size_t arguments) const {
    return make_call(method, name_hash(method), arguments);
  }
  OutgoingCall make_call(std::string_view method, std::uint64_t id, std::size_t arguments) const;
  // For a call of the program: sets the agent's default timeout if this handle has none.
  void add_default_timeout(OutgoingCall& call) const;
  // Sends the call, with retries if its options and contents permit them. done: as CallbackCall::Done.
  void start(OutgoingCall&& call, CallbackCall::Done done) const;
  // Sends the call once, without retries. The call fails with resource_exhausted if it exceeds a limit of
  // this agent.
  void submit(std::shared_ptr<PendingCall> call) const;
  // The agent that makes the calls, and the path to the peer.
  const std::shared_ptr<AgentCore>& core() const { return core_; }
  const std::shared_ptr<Route>& route() const { return route_; }

  // Sends the call like start(), and returns a future of the decoded reply. Decoder: Result<Reply>&& ->
  // Result<Value>.
  template <class Value, class Decoder>
  Future<Value> start_typed(OutgoingCall&& call, Decoder decode) const {
    Promise<Value> promise(route_->loop());
    Future<Value> future = promise.future();
    if (RetriedCall::applies(call)) {
      retry(std::move(call), std::move(promise), std::move(decode));
      return future;
    }
    auto pending = std::make_shared<TypedCall<Value, Decoder>>(std::move(call), host(), route_,
                                                               std::move(promise), std::move(decode));
    pending->promise().on_request([weak = std::weak_ptr<PendingCall>(pending)](WorkRequest request) {
      auto call = weak.lock();
      if (call == nullptr) return std::string();
      if (request == WorkRequest::title) return call->title();
      call->route()->cancel(call);
      return std::string();
    });
    submit(std::move(pending));
    return future;
  }

  // Calls a method of weft itself that has no parameters. The call has no default deadline.
  template <class Value>
  Future<Value> ask(std::string_view method) const {
    OutgoingCall call = make_call(method, 0);
    call.begin();
    call.end();
    return start_typed<Value>(std::move(call), Decode<Value>{});
  }

  // Encodes the arguments of the method M into `call`, and sets the options of M.
  template <class M, class... Given>
  static void encode(OutgoingCall& call, Given&&... given) {
    using Arguments = typename M::Traits::Arguments;
    static_assert(detail::arguments_fit<Arguments, Given...>(),
                  "weft: the arguments of this call do not fit the parameters that the method declares");
    if constexpr (detail::arguments_fit<Arguments, Given...>()) {
      call.signature = detail::signature_hash<typename M::Traits>();
      call.idempotent |= M::is_idempotent;
      call.background = M::is_background;
      call.begin();
      detail::encode_arguments<Arguments>(call.message(), std::index_sequence_for<Given...>{},
                                          std::forward<Given>(given)...);
      call.end();
    }
  }

  // Returns the decoded result of a reply.
  template <class Value>
  static Result<Value> decode(Result<PendingCall::Reply>&& reply, std::string_view method,
                              const CallRoute* from = nullptr) {
    if (!reply.ok()) return reply.error();
    return capture([&]() -> Value {
      try {
        if constexpr (std::is_void_v<Value>) {
          if (reply.value() != nullptr) Codec<Unit>::decode(reply.value()->result());
        } else {
          if (reply.value() == nullptr) throw Error(ErrorKind::internal, "a notification has no result");
          return Codec<Value>::decode(reply.value()->result());
        }
      } catch (const Error& error) {
        throw_bad_result(error, method, from);
      }
    });
  }

  // decode() as a function object, so that code for equal result types is compiled once.
  template <class Value>
  struct Decode {
    // call: error texts contain its method and peer.
    Result<Value> operator()(Result<PendingCall::Reply>&& reply, const PendingCall& call) const {
      return decode<Value>(std::move(reply), call.method(), call.route().get());
    }
  };

  // The entry for Target in the service of the class In. By default, In is the class that declares Target.
  template <auto Target, class TypeOfTarget = decltype(Target),
            class In = typename detail::HandlerTraits<TypeOfTarget>::Object>
  struct FoundMethod {
    using Class = In;  // the class whose service lists Target
    static_assert(
        Served<Class>,
        "weft: the class that declares this member function has no Service; for an inherited method "
        "name the class that lists it: peer.call<Derived, &Derived::f>()");
    // If the assertion fails, an empty service is used, so that the compiler reports no further error.
    using Service = typename std::conditional_t<Served<Class>, Class, detail::NoService>::Service;
    using Entries = typename Service::Entries;
    static_assert(!Served<Class> || detail::MethodFor<Target, Entries>::exists,
                  "weft: this member function is not among the methods of its class's Service");
    // The entry in the service.
    using Type = typename decltype(detail::MethodFor<Target, Entries>::type())::type;
    // The name of the method ("service.method") and its id on the wire.
    static inline const std::string name = std::string(Service::name) + "." + std::string(Type::short_name);
    static constexpr std::uint64_t id = name_hash(Type::short_name, name_hash(".", name_hash(Service::name)));
  };

 private:
  template <class M, class... Given>
  auto typed_call(std::string_view name, std::uint64_t id, Given&&... given) const {
    using Value = typename M::Traits::Result;
    return start_typed<Value>(typed_request<M>(name, id, false, std::forward<Given>(given)...),
                              Decode<Value>{});
  }
  template <class M, class... Given>
  Notified typed_notify(std::string_view name, std::uint64_t id, Given&&... given) const {
    return Notified(
        start_typed<void>(typed_request<M>(name, id, true, std::forward<Given>(given)...), Decode<void>{}));
  }
  template <class M, class... Given>
  OutgoingCall typed_request(std::string_view name, std::uint64_t id, bool notify, Given&&... given) const {
    OutgoingCall outgoing =
        make_call(name, id, sizeof...(Given) - (std::size_t{0} + ... + (detail::is_modifier<Given> ? 1 : 0)));
    outgoing.notify = outgoing.acknowledged = notify;
    add_default_timeout(outgoing);
    add_default_retry(outgoing);  // calls of layers have no default RetryPolicy
    encode_after_modifiers<M>(outgoing, std::forward<Given>(given)...);
    return outgoing;
  }

  // Sends the call with retries, and completes the promise with the decoded reply.
  template <class Value, class Decoder>
  void retry(OutgoingCall call, Promise<Value> promise, Decoder decode) const {
    struct Held {
      Promise<Value> promise;
      Decoder decode;
    };
    auto held = std::make_shared<Held>(Held{std::move(promise), std::move(decode)});
    auto whole =
        with_retries(std::move(call), [held](Result<PendingCall::Reply> reply, const PendingCall& attempt) {
          if constexpr (std::is_invocable_v<Decoder&, Result<PendingCall::Reply>&&, const PendingCall&>) {
            held->promise.complete(held->decode(std::move(reply), attempt));
          } else {
            held->promise.complete(held->decode(std::move(reply)));
          }
        });
    held->promise.on_request([weak = std::weak_ptr(whole)](WorkRequest request) {
      const auto call = weak.lock();
      if (call == nullptr) return std::string();
      if (request == WorkRequest::title) return call->title();
      call->cancel();
      return std::string();
    });
    whole->begin();
  }
  std::shared_ptr<RetriedCall> with_retries(OutgoingCall call, RetriedCall::Done done) const;
  void add_default_retry(OutgoingCall& call) const;
  const CallHost& host() const;
  PendingCall::CancelSources cancel_sources() const;
  [[noreturn]] static void throw_bad_result(const Error& error, std::string_view method,
                                            const CallRoute* from);

  template <class M, class First, class... Rest>
  static void encode_after_modifiers(OutgoingCall& call, First&& first, Rest&&... rest) {
    if constexpr (detail::is_modifier<First>) {
      first.apply(call);
      encode_after_modifiers<M>(call, std::forward<Rest>(rest)...);
    } else {
      encode<M>(call, std::forward<First>(first), std::forward<Rest>(rest)...);
    }
  }
  template <class M>
  static void encode_after_modifiers(OutgoingCall& call) {
    encode<M>(call);
  }

  std::shared_ptr<AgentCore> core_;
  std::shared_ptr<Route> route_;
  CallOptions options_;
  Metadata metadata_;
  std::shared_ptr<const AgentId> only_;
  std::shared_ptr<CallContext> serving_;
  std::shared_ptr<CancelSource> scope_;
};

}  // namespace weft::rpc
