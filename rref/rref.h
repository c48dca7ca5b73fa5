// RRef<T>: a typed handle to an object that lives on its owner agent.
//
//   auto front = rref::create<Front>(agent.peer("worker1"), 512);   // at once; creation runs meanwhile
//   auto hidden = front.remote<&Front::forward>(pass, tokens);      // RRef<Tensor> on worker1, at once
//   auto value = co_await hidden.to_here(pass);
//
// Copies share one fork of the object; the object lives while any agent has a fork. An RRef<T> is accepted
// wherever a method takes T (its owner sends the value to the callee) or RRef<T>, and an RRef<Derived> is an
// RRef<Base>. Errors: owner_lost once the owner is gone. If the creation failed, the creator gets the error
// of the creation, and other agents get failed_precondition with the text of that error. Thread-safe like a
// shared_ptr: copies may be used concurrently. An RRef may outlive its agent; then all uses fail.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/site.h>
#include <weft/rref/reference.h>
#include <weft/rref/stored_object.h>

#include <concepts>
#include <ostream>

namespace weft::rref {

// The name of an object on its owner: the first create() with the name creates the object, and later calls
// get the same object, even after the last RRef to it is released. A call with other constructor arguments,
// or with another type, fails with already_exists. The object exists until its owner's agent ends. If the
// creation fails, the name stays free.
struct Named {
  std::string name;
};

// The RRef layer, for the agent's constructor.
WEFT_EXPORT rpc::Layers layers();

// The functions of the agent's RRefLayer that the templates below use.
namespace detail {

using Reply = rpc::Result<rpc::PendingCall::Reply>;  // undecoded

// The incarnation of a peer, which is part of the ids of its objects. Throws failed_precondition if it is
// unknown.
WEFT_EXPORT rpc::AgentId known_incarnation(const rpc::Peer& peer);
WEFT_EXPORT bool is_confirmed(const ReferencePtr& reference);
WEFT_EXPORT rpc::Peer owner_of(const ReferencePtr& reference, const rpc::CallOptions& options);
// Adds to the call the part that names the object. Throws the reason, for example owner_lost, if
// calls through the reference can no longer succeed.
WEFT_EXPORT void target(const ReferencePtr& reference, rpc::OutgoingCall& call);
// Replaces the error of a call through a reference by an error about the object (owner_lost for peer_lost).
WEFT_EXPORT Reply explain(Reply reply, const About& object);
// On the owner: the object, once it is alive. On other agents: failed_precondition.
WEFT_EXPORT rpc::Future<std::shared_ptr<StoredObject>> local_object(const ReferencePtr& reference);
WEFT_EXPORT ReferencePtr adopt(rpc::Agent& agent, rpc::KeptValue value, std::string type, std::string site);

// A call whose result stays at the peer, and the reference to that result. target: the object that is called;
// null: none.
struct KeptCall {
  rpc::OutgoingCall call;
  ReferencePtr result;
};
WEFT_EXPORT KeptCall make_kept_call(const rpc::Peer& peer, std::string_view method, std::size_t arguments,
                                    const ReferencePtr& target, std::string type, std::string site,
                                    std::optional<std::string> name);

// Encode and decode an RRef as a value.
WEFT_EXPORT void write(rpc::ValueWriter writer, const ReferencePtr& reference);
WEFT_EXPORT ReferencePtr read(rpc::ValueReader reader);

}  // namespace detail

template <class T>
class RRef {
 public:
  // The type of the object.
  using Value = T;

  RRef() = default;
  // For layers: programs get handles from create(), of() and calls.
  explicit RRef(ReferencePtr reference) : reference_(std::move(reference)) {}
  // An RRef to the same object by its base class T. The object's owner must call serve<T>().
  template <class Derived>
    requires(!std::same_as<Derived, T>) && std::derived_from<Derived, T>
  RRef(const RRef<Derived>& derived)
      : reference_(derived.reference_),
        options_(derived.options_),
        metadata_(derived.metadata_),
        serving_(derived.serving_) {}

  // Other members may only be called if valid() is true.
  bool valid() const { return reference_ != nullptr; }
  // The agent on which the object lives, and the object's id there.
  const rpc::AgentId& owner() const { return reference_->owner(); }
  const RRefId& id() const { return reference_->id(); }
  bool is_owner() const { return reference_->is_owner(); }                // the object lives on this agent
  bool is_confirmed() const { return detail::is_confirmed(reference_); }  // the owner knows of this fork
  // For layers.
  const ReferencePtr& reference() const { return reference_; }

  // with(options), with_metadata(): calls through the returned handle use these options or this metadata,
  // merged with those of this handle, as for a Peer. with(serving): calls through the returned handle are
  // made on behalf of the served call.
  RRef with(rpc::CallOptions options) const {
    RRef copy = *this;
    copy.options_.merge(options);
    return copy;
  }
  RRef with_metadata(rpc::Metadata metadata) const {
    RRef copy = *this;
    metadata.merge(copy.metadata_);
    copy.metadata_ = std::move(metadata);
    return copy;
  }
  RRef with(rpc::CallContext& serving) const {
    RRef copy = *this;
    copy.serving_ = serving.shared_from_this();
    return copy;
  }

  // Calls a method of the object at its owner, in the object's turn. Leading CallModifiers (a pass) change
  // the call.
  template <auto Target, class... Given>
  auto call(Given&&... given) const {
    using Value = typename Method<Target>::Type::Traits::Result;
    return call_raw<Target, Value>(
        false,
        [](rpc::Result<rpc::PendingCall::Reply>&& reply, const std::string& method) {
          return rpc::decode_reply<Value>(std::move(reply), method);
        },
        std::forward<Given>(given)...);
  }
  // Calls a method like call(), but the result stays at the owner. Throws if the object is known to be
  // unusable.
  template <auto Target, class... Given>
  auto remote(Given&&... given) const;
  template <auto Target, class... Given>
  rpc::Notified notify(Given&&... given) const {
    return rpc::Notified(call_raw<Target, void>(
        true,
        [](rpc::Result<rpc::PendingCall::Reply>&& reply, const std::string&) {
          return reply.ok() ? rpc::Result<void>{} : rpc::Result<void>(reply.error());
        },
        std::forward<Given>(given)...));
  }

  // Copies the object to this agent. In a pass, the copy is differentiable.
  template <class... Modifiers>
  rpc::Future<T> to_here(const Modifiers&... modifiers) const;

  // On the owner: the object itself, once it is alive. The caller uses the object outside its turn. On other
  // agents: failed_precondition.
  rpc::Future<std::shared_ptr<T>> local() const;
  // Waits for the object's turn. Completes when the object is alive, or fails with the error of its creation.
  rpc::Future<void> ready() const;

  // The owner as a Peer with the options of with(), for calls that are not methods of the object (an operator
  // on a tensor).
  rpc::Peer owner_peer() const {
    const rpc::Peer peer = detail::owner_of(reference_, options_).with_metadata(metadata_);
    return serving_ != nullptr ? peer.with(*serving_) : peer;
  }

 private:
  template <auto Target, class Type = decltype(Target)>
  using Method =
      rpc::FoundMethod<Target, Type, typename decltype(rpc::detail::listing_class<T, Target>())::type>;

  template <auto Target, class Value, class Decode, class... Given>
  rpc::Future<Value> call_raw(bool notify, Decode decode, Given&&... given) const;
  // Sends a call on the object. encode: writes its arguments. decode: Result<Reply>&& -> Result<Value>.
  template <class Value, class Encode, class Decode>
  rpc::Future<Value> start(std::string_view method, std::size_t arguments, bool notify, Encode encode,
                           Decode decode) const;
  template <class Other>
  friend class RRef;

  ReferencePtr reference_;
  rpc::CallOptions options_;
  rpc::Metadata metadata_;
  std::shared_ptr<rpc::CallContext> serving_;
};

namespace detail {

// "rref<box> 3f2a…:8c1d… on worker1"; a user's RRef also has its fork; "rref<box> (none)" for an empty one.
std::string WEFT_EXPORT text_of(const std::string& type, const ReferencePtr& reference);

inline constexpr std::string_view fetch_method = "weft.rref.fetch";
inline constexpr std::string_view touch_method = "weft.rref.touch";

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, rpc::Unit, T>;

// The peer that creates an object, and the location in the program.
struct PeerAndSite {
  PeerAndSite(const rpc::Peer& p, rpc::Site s = rpc::Site::current()) : peer(p), site(s.text()) {}
  const rpc::Peer& peer;
  std::string site;
};

// The name of T as the type of an RRef<T>.
template <class T>
std::string object_type() {
  if constexpr (rpc::Served<T>) {
    return std::string(T::Service::name);
  } else if constexpr (rpc::Transferable<T>) {
    return rpc::type_text<T>();
  } else {
    return "object";
  }
}

// The value as a T; type_mismatch if it has another type.
template <class T>
rpc::Result<std::shared_ptr<T>> typed(const std::shared_ptr<StoredObject>& object) {
  T* value = nullptr;
  if constexpr (std::is_class_v<T>) {
    value = object->as<T>();
  } else if (object->value().type->name == object_type<T>()) {
    value = static_cast<T*>(object->value().value.get());
  }
  if (value != nullptr) return std::shared_ptr<T>(object, value);
  return std::make_exception_ptr(
      rpc::Error(rpc::ErrorKind::type_mismatch,
                 "expected " + object_type<T>() + ", found an object of type " + object->value().type->name));
}

// Sends a call whose result stays at the peer as an object. kept_alive: kept while the call is in flight.
template <class Value, class Encode>
RRef<Stored<Value>> keep_result_of(const rpc::Peer& peer, std::string_view method, std::size_t arguments,
                                   const ReferencePtr& target, std::string site,
                                   std::optional<std::string> name, Encode encode,
                                   std::shared_ptr<const void> kept_alive = nullptr) {
  auto [call, reference] = make_kept_call(peer, method, arguments, target, object_type<Stored<Value>>(),
                                          std::move(site), std::move(name));
  encode(call);
  peer.calls().start(std::move(call),
                     [kept_alive = std::move(kept_alive)](rpc::Result<rpc::PendingCall::Reply>) {
                     });  // the call's CallPart (Carried) tells the RRef how the call has ended
  return RRef<Stored<Value>>(std::move(reference));
}

template <class M, class Value, class... Given>
RRef<Stored<Value>> keep_result(const rpc::Peer& peer, std::string_view method, const ReferencePtr& target,
                                std::string site, std::optional<std::string> name, Given&&... given) {
  return keep_result_of<Value>(
      peer, method, rpc::count_sent<Given...>, target, std::move(site), std::move(name),
      [&](rpc::OutgoingCall& call) { rpc::encode_call<M>(call, std::forward<Given>(given)...); });
}

template <class T>
struct ConstructorMethod {
  using Traits = typename rpc::detail::ConstructorOf<T>::Traits;
  static constexpr bool is_idempotent = false, is_background = false;
};

template <class T>
const std::string& constructor_name() {
  static const std::string name = std::string(T::Service::name) + ".new";
  return name;
}

// Serves the methods of T for calls on objects behind RRefs. Further calls have no effect.
template <class T>
void serve_methods(rpc::MethodTable& methods) {
  [&]<class... Items>(std::tuple<Items...>*) {
    const bool served = ((rpc::detail::is_constructor<Items> ||
                          methods.find(T::Service::id_of(Items::short_name)) != nullptr) &&
                         ...);
    if (!served) rpc::detail::serve_object<T>(methods, nullptr);
  }(static_cast<typename T::Service::Entries*>(nullptr));
}

}  // namespace detail

// Permits calls through an RRef<T> to objects of types derived from T that live on this agent.
template <rpc::Served T>
void serve(rpc::Agent& agent) {
  detail::serve_methods<T>(agent.methods());
}

// Readable text: type, id and owner.
template <class T>
std::string to_string(const RRef<T>& rref) {
  return detail::text_of(detail::object_type<T>(), rref.reference());
}
template <class T>
std::ostream& operator<<(std::ostream& out, const RRef<T>& rref) {
  return out << to_string(rref);
}

// Creates a T on a peer that permits it (Agent::allow_create). Returns at once and never blocks: calls
// through the RRef wait for the creation. failed_precondition if the peer's incarnation is unknown: await
// peer.ready() first. In a job, the incarnations of all members are known when wait_for() has
// completed.
template <rpc::Served T, class... Given>
RRef<T> create(detail::PeerAndSite creator, Given&&... given) {
  return detail::keep_result<detail::ConstructorMethod<T>, T>(
      creator.peer, detail::constructor_name<T>(), nullptr, creator.site, {}, std::forward<Given>(given)...);
}
template <rpc::Served T, class... Given>
RRef<T> create(detail::PeerAndSite creator, Named named, Given&&... given) {
  return detail::keep_result<detail::ConstructorMethod<T>, T>(creator.peer, detail::constructor_name<T>(),
                                                              nullptr, creator.site, std::move(named.name),
                                                              std::forward<Given>(given)...);
}

// Calls a free function, or a method of a served object, on a peer. The result stays at the peer.
template <rpc::NamedFunction F, class... Given>
auto remote(detail::PeerAndSite creator, Given&&... given) {
  return detail::keep_result<F, typename F::Traits::Result>(creator.peer, F::name, nullptr, creator.site, {},
                                                            std::forward<Given>(given)...);
}
template <auto Target, class... Given,
          class Type = decltype(Target)>  // Type is never given: see rpc's MethodOf
auto remote(detail::PeerAndSite creator, Given&&... given) {
  using Found = rpc::FoundMethod<Target>;
  return detail::keep_result<typename Found::Type, typename Found::Type::Traits::Result>(
      creator.peer, Found::name, nullptr, creator.site, {}, std::forward<Given>(given)...);
}
// The same for a method that T's service lists and T inherits.
template <rpc::Served T, auto Target, class... Given, class Type = decltype(Target)>
auto remote(detail::PeerAndSite creator, Given&&... given) {
  using Found = rpc::FoundMethod<Target, Type, T>;
  return detail::keep_result<typename Found::Type, typename Found::Type::Traits::Result>(
      creator.peer, Found::name, nullptr, creator.site, {}, std::forward<Given>(given)...);
}

// Makes an RRef to a value on this agent. value: the value itself, a shared_ptr to it, or a holder with ptr()
// (torch::nn modules). Receivers of the RRef may call the methods of the value's service.
template <class Given>
auto local(rpc::Agent& agent, Given value, rpc::Site site = rpc::Site::current()) {
  const auto adopt = [&]<class T>(std::shared_ptr<T> object) {
    if constexpr (rpc::Served<T>) detail::serve_methods<T>(agent.methods());
    return RRef<T>(
        detail::adopt(agent, rpc::detail::kept(std::move(object)), detail::object_type<T>(), site.text()));
  };
  if constexpr (requires { value.ptr(); }) {
    return adopt(value.ptr());
  } else if constexpr (requires {
                         typename Given::element_type;
                         value.get();
                       }) {
    return adopt(std::move(value));
  } else {
    return adopt(std::make_shared<Given>(std::move(value)));
  }
}

template <class T>
template <class Value, class Encode, class Decode>
rpc::Future<Value> RRef<T>::start(std::string_view method, std::size_t arguments, bool notify, Encode encode,
                                  Decode decode) const {
  const rpc::Peer peer = owner_peer();
  rpc::OutgoingCall call = peer.calls().make(method, arguments);
  peer.calls().add_default_timeout(call);
  call.notify = call.acknowledged = notify;
  try {
    detail::target(reference_, call);
  } catch (const rpc::Error&) {
    return rpc::Future<Value>::made(std::current_exception());
  }
  encode(call);
  return peer.calls().start_typed<Value>(
      std::move(call), [decode, object = reference_->about()](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return decode(detail::explain(std::move(reply), *object));
      });
}

template <class T>
template <auto Target, class Value, class Decode, class... Given>
rpc::Future<Value> RRef<T>::call_raw(bool notify, Decode decode, Given&&... given) const {
  using Found = Method<Target>;
  static_assert(std::derived_from<T, typename Found::Class>,
                "weft: this is not a method of the object behind the RRef");
  return start<Value>(
      Found::name, rpc::count_sent<Given...>, notify,
      [&](rpc::OutgoingCall& call) {
        rpc::encode_call<typename Found::Type>(call, std::forward<Given>(given)...);
      },
      [decode](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return decode(std::move(reply), Found::name);
      });
}

template <class T>
template <auto Target, class... Given>
auto RRef<T>::remote(Given&&... given) const {
  using Found = Method<Target>;
  static_assert(std::derived_from<T, typename Found::Class>,
                "weft: this is not a method of the object behind the RRef");
  return detail::keep_result<typename Found::Type, typename Found::Type::Traits::Result>(
      owner_peer(), Found::name, reference_, {}, {}, std::forward<Given>(given)...);
}

template <class T>
template <class... Modifiers>
rpc::Future<T> RRef<T>::to_here(const Modifiers&... modifiers) const {
  static_assert(rpc::Transferable<T>, "weft: a value of this type cannot be sent; call its methods instead");
  return start<T>(
      detail::fetch_method, 0, false,
      [&](rpc::OutgoingCall& call) {
        (modifiers.apply(call), ...);
        call.begin();
        call.end();
      },
      [](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return rpc::decode_reply<T>(std::move(reply), detail::fetch_method);
      });
}

template <class T>
rpc::Future<std::shared_ptr<T>> RRef<T>::local() const {
  return detail::local_object(reference_).then([](rpc::Result<std::shared_ptr<StoredObject>>&& object) {
    return object.ok() ? detail::typed<T>(object.value()) : rpc::Result<std::shared_ptr<T>>(object.error());
  });
}

template <class T>
rpc::Future<void> RRef<T>::ready() const {
  return start<void>(
      detail::touch_method, 0, false,
      [](rpc::OutgoingCall& call) {
        call.begin();
        call.end();
      },
      [](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return rpc::decode_reply<void>(std::move(reply), detail::touch_method);
      });
}

}  // namespace weft::rref

namespace weft::rpc {

template <class T>
struct Codec<rref::RRef<T>> {
  static void describe(TypeText& text) {
    text << "rref<";
    if constexpr (Transferable<T>) {
      Codec<T>::describe(text);
    } else if constexpr (Served<T>) {
      text << T::Service::name;
    } else {
      text << "object";
    }
    text << ">";
  }
  static void encode(ValueWriter writer, const rref::RRef<T>& value) {
    if (!value.valid()) return writer.set_nil();
    rref::detail::write(writer, value.reference());
  }
  static rref::RRef<T> decode(ValueReader reader) {
    if (reader.is_nil()) return {};
    return rref::RRef<T>(rref::detail::read(reader));
  }
};

// An RRef<T> is accepted wherever a T is declared: the callee's agent fetches it before the handler runs.
template <class T>
struct StandsFor<rref::RRef<T>, T> : std::true_type {};

}  // namespace weft::rpc
