// The typed ends of a call: the caller's arguments and result, and the thunk that runs a handler behind a
// MethodEntry.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/call/pending_call.h>
#include <weft/rpc/core/asio_executor.h>
#include <weft/rpc/core/serial_executor.h>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>

namespace weft::rpc::detail {

// Whether an argument of type Given may be passed for a parameter of type Parameter. Functions check it with
// arguments_fit() in a static_assert and not with a constraint, so that the compiler reports one clear error.
template <class Given, class Parameter>
concept Fits = StandsFor<std::decay_t<Given>, Parameter>::value || std::is_convertible_v<Given, Parameter>;

template <class Parameter, class Given>
void encode_argument(ValueWriter writer, Given&& given) {
  using Plain = std::decay_t<Given>;
  if constexpr (StandsFor<Plain, Parameter>::value || std::same_as<Plain, Parameter>) {
    Codec<Plain>::encode(writer, given);
  } else {
    Codec<Parameter>::encode(writer, static_cast<const Parameter&>(Parameter(std::forward<Given>(given))));
  }
}

template <class Arguments, class... Given, std::size_t... I>
void encode_arguments(OutgoingMessage& message, std::index_sequence<I...>, Given&&... given) {
  (encode_argument<std::tuple_element_t<I, Arguments>>(message.argument(I), std::forward<Given>(given)), ...);
}

template <class Arguments, class... Given>
consteval bool arguments_fit() {
  if constexpr (std::tuple_size_v<Arguments> != sizeof...(Given)) {
    return false;
  } else {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return (Fits<Given, std::tuple_element_t<I, Arguments>> && ...);
    }(std::index_sequence_for<Given...>{});
  }
}

// The hash of the signature, computed once for each method.
template <class Traits>
std::uint64_t signature_hash() {
  static const std::uint64_t hash = name_hash(Traits::text());
  return hash;
}

[[noreturn]] WEFT_EXPORT void throw_bad_result(const Error& error, std::string_view method,
                                               const CallRoute* from);

}  // namespace weft::rpc::detail

namespace weft::rpc {

// Whether an argument changes the call instead of being sent, and the number of those that are sent.
template <class Given>
inline constexpr bool is_modifier = std::is_base_of_v<CallModifier, std::decay_t<Given>>;
template <class... Given>
inline constexpr std::size_t count_sent = (std::size_t{0} + ... + (is_modifier<Given> ? 0 : 1));

// For layers: encodes the arguments of the method M into `call`, and sets the options of M. Leading modifiers
// are applied before.
template <class M, class... Given>
void encode_call(OutgoingCall& call, Given&&... given) {
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
template <class M, class First, class... Rest>
  requires is_modifier<First>
void encode_call(OutgoingCall& call, First&& first, Rest&&... rest) {
  first.apply(call);
  encode_call<M>(call, std::forward<Rest>(rest)...);
}

// For layers: the decoded result of a reply. from: error texts contain its name.
template <class Value>
Result<Value> decode_reply(Result<PendingCall::Reply>&& reply, std::string_view method,
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
      detail::throw_bad_result(error, method, from);
    }
  });
}

// decode_reply() as a function object, so that code for equal result types is compiled once.
template <class Value>
struct DecodeReply {
  // call: error texts contain its method and peer.
  Result<Value> operator()(Result<PendingCall::Reply>&& reply, const PendingCall& call) const {
    return decode_reply<Value>(std::move(reply), call.method(), call.route().get());
  }
};

}  // namespace weft::rpc

namespace weft::rpc::detail {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

[[noreturn]] WEFT_EXPORT void throw_missing_argument(std::size_t i, const std::string& type);
[[noreturn]] WEFT_EXPORT void throw_bad_argument(std::size_t i, const Error& error);
WEFT_EXPORT void refuse_surplus(const IncomingCall& call, std::size_t parameters);  // throws
WEFT_EXPORT void refuse_arguments(IncomingCall& call, std::exception_ptr why);
WEFT_EXPORT Error empty_result();  // the error of a handler that returned an empty future or coroutine

template <class Parameter>
Parameter decode_argument(const IncomingCall& call, std::size_t i) {
  if (i >= call.argument_count()) {
    // The caller uses an older release of the method, which does not have this parameter.
    if constexpr (is_optional<Parameter>) return std::nullopt;
    throw_missing_argument(i, type_text<Parameter>());
  }
  try {
    return Codec<Parameter>::decode(call.argument(i));
  } catch (const Error& error) {
    throw_bad_argument(i, error);
  }
}

template <class Arguments, std::size_t... I>
Arguments decode_arguments(const IncomingCall& call, std::index_sequence<I...>) {
  refuse_surplus(call, sizeof...(I));
  return Arguments{decode_argument<std::tuple_element_t<I, Arguments>>(call, I)...};
}

template <class T>
void throw_pointer(void* object) {
  throw static_cast<T*>(object);
}

// The value as an Object, if its type is Object or derives from it; otherwise null.
template <class Object>
void* object_in(const KeptValue& kept) {
  const auto thrown = kept.type->throw_pointer;
  if (thrown == &throw_pointer<Object>) return kept.value.get();
  if (thrown == nullptr) return nullptr;
  try {
    thrown(kept.value.get());
  } catch (Object* object) {
    return object;
  } catch (...) {
  }
  return nullptr;
}

template <class T>
KeptType describe_kept() {
  KeptType type;
  if constexpr (Served<T>) type.name = T::Service::name;
  if constexpr (requires { requires T::concurrent; }) type.concurrent = true;
  if constexpr (Transferable<T>) {
    type.name = type_text<T>();
    type.encode = [](ValueWriter writer, const void* object) {
      Codec<T>::encode(writer, *static_cast<const T*>(object));
    };
  }
  if constexpr (std::is_class_v<T>) type.throw_pointer = &throw_pointer<T>;
  return type;
}

template <class T>
KeptValue kept(std::shared_ptr<T> value) {
  static const KeptType type = describe_kept<T>();
  return {std::move(value), &type};
}

// Answers a call with the result of its handler.
template <class T>
void answer(IncomingCall& call, Result<T>&& result) {
  if (!result.ok()) return call.fail(result.error());
  if constexpr (std::is_void_v<T>) {
    if (call.keeps_result()) return call.keep(kept(std::make_shared<Unit>()));
    call.reply([](ValueWriter writer) { writer.set_nil(); });
  } else {
    if (call.keeps_result()) return call.keep(kept(std::make_shared<T>(std::move(result).get())));
    call.reply([&](ValueWriter writer) { Codec<T>::encode(writer, result.value()); });
  }
}

// answer() as a function object, so that code for equal result types is compiled once. T may be a layer's
// wrapper, which contains the result (FutureResult).
struct Answer {
  std::shared_ptr<IncomingCall> call;
  template <class T>
  void operator()(Result<T>&& result) const {
    if constexpr (std::is_same_v<T, typename FutureResult<T>::Type>) {
      answer(*call, std::move(result));
    } else if (result.ok()) {
      answer(*call, capture([&] { return FutureResult<T>::take(std::move(result).get(), *call); }));
    } else {
      call->fail(result.error());
    }
  }
};

// Runs a handler that is an asio::awaitable on the call's executor. If the call is cancelled, the coroutine
// is also cancelled.
template <class T, class Awaitable>
void run_awaitable(const std::shared_ptr<IncomingCall>& call, Awaitable awaitable) {
  struct Running {
    explicit Running(Executor& executor) : turns(executor) {}
    SerialExecutor turns;  // a cancellation signal must not be emitted while the coroutine runs
    asio::cancellation_signal cancelled;
  };
  auto running = std::make_shared<Running>(call->executor());
  call->on_cancel([weak = std::weak_ptr(running)] {
    const auto now = weak.lock();
    if (now == nullptr) return;
    now->turns.post([now] { now->cancelled.emit(asio::cancellation_type::terminal); });
  });
  const AsioExecutor executor(
      call->asio_context(), running->turns, call->context(),
      std::make_shared<std::pair<std::shared_ptr<IncomingCall>, std::shared_ptr<Running>>>(call, running));
  const auto slot = running->cancelled.slot();
  asio::co_spawn(executor, std::move(awaitable),
                 asio::bind_cancellation_slot(slot, [call](std::exception_ptr error, auto... value) {
                   answer(*call, error != nullptr ? Result<T>(error) : Result<T>(std::move(value)...));
                 }));
}

// The arguments of a call. nullopt: they could not be decoded, and the call has been refused.
template <class Arguments>
std::optional<Arguments> arguments_of(const std::shared_ptr<IncomingCall>& call) {
  try {
    return decode_arguments<Arguments>(*call, std::make_index_sequence<std::tuple_size_v<Arguments>>{});
  } catch (...) {
    refuse_arguments(*call, std::current_exception());
    return std::nullopt;
  }
}

// Runs a method's function. A separate function, because run_handler() is compiled once for each signature.
template <class M>
typename M::Traits::Returned invoke(IncomingCall& call, typename M::Traits::Arguments& arguments) {
  using Traits = typename M::Traits;
  return std::apply(
      [&](auto&... argument) -> typename Traits::Returned {
        const auto run = [&](auto&... context) -> typename Traits::Returned {
          if constexpr (std::is_void_v<typename Traits::Object>) {
            return (*M::target)(context..., std::move(argument)...);
          } else {
            auto* object = static_cast<typename Traits::Object*>(call.object());
            return (object->*M::target)(context..., std::move(argument)...);
          }
        };
        if constexpr (Traits::takes_context) {
          return run(static_cast<CallContext&>(call));
        } else {
          return run();
        }
      },
      arguments);
}

template <class Returned, class Value, class Arguments>
void run_handler(const std::shared_ptr<IncomingCall>& call, Returned (*invoke)(IncomingCall&, Arguments&)) {
  std::optional<Arguments> arguments = arguments_of<Arguments>(call);
  if (!arguments) return;
  Result<Returned> returned = [&] {
    // A coroutine enters the context when it starts.
    ContextScope scope(is_coroutine<Returned> ? nullptr : call->context());
    return capture([&] { return invoke(*call, *arguments); });
  }();
  if constexpr (is_coroutine<Returned> || is_future<Returned>) {
    if (!returned.ok()) return call->fail(returned.error());
    if (!returned.value().valid()) return call->fail(empty_result());
    if constexpr (std::same_as<Returned, Task<Value>>) {
      // The call outlives the coroutine, because the coroutine may refer to the call's context.
      std::move(returned).get().start_here(call->executor(), call->context(), Answer{call});
    } else if constexpr (is_coroutine<Returned>) {
      run_awaitable<Value>(call, std::move(returned).get());
    } else {
      call->release_object();
      std::move(returned).get().then(Answer{call});
    }
  } else {
    arguments.reset();
    answer(*call, std::move(returned));
  }
}

// The description of a method, without `run`. service: empty for a free function.
WEFT_EXPORT MethodEntry described_entry(std::string_view service, std::string_view short_name,
                                        std::string signature, std::vector<std::string> parameters,
                                        std::string result);

// The entry of a method of weft itself, without parameters, that runs on the loop. The caller sets its `run`.
template <class Value>
MethodEntry own_entry(std::string_view name) {
  MethodEntry entry = described_entry({}, name, HandlerTraits<Value (*)()>::text(), {}, type_text<Value>());
  entry.idempotent = entry.non_blocking = true;
  return entry;
}

// A method like own_entry(), whose result is make(call).
template <class Value, class Make>
MethodEntry own_method(std::string_view name, Make make) {
  MethodEntry entry = own_entry<Value>(name);
  entry.run = [make](std::shared_ptr<IncomingCall> call) {
    answer<Value>(*call, capture([&] { return make(*call); }));
  };
  return entry;
}

// The entry of a method. Its `object` is not set.
template <class M>
MethodEntry method_entry(std::string_view service) {
  using Traits = typename M::Traits;
  MethodEntry entry = described_entry(service, M::short_name, Traits::text(), Traits::parameters(),
                                      type_text<typename Traits::Result>());
  entry.idempotent = M::is_idempotent;
  entry.non_blocking = M::is_non_blocking;
  entry.background = M::is_background;
  if constexpr (!std::is_void_v<typename Traits::Object>) {
    entry.needs_object = true;
    entry.object_in = &object_in<typename Traits::Object>;
  }
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    run_handler<typename Traits::Returned, typename Traits::Result>(call, &invoke<M>);
  };
  return entry;
}

// Serves every method of T's service on `object`. If `object` is null, the methods run on the object that a
// layer above resolves.
template <class T>
void serve_object(MethodTable& methods, const std::shared_ptr<T>& object) {
  [&]<class... Items>(std::tuple<Items...>*) {
    const auto one = [&]<class Item>(std::type_identity<Item>) {
      if constexpr (!is_constructor<Item>) {
        MethodEntry entry = method_entry<Item>(T::Service::name);
        entry.object = std::shared_ptr<typename Item::Traits::Object>(object);
        methods.serve(std::move(entry));
      }
    };
    (one(std::type_identity<Items>{}), ...);
  }(static_cast<typename T::Service::Entries*>(nullptr));
}

// The entry of the method by which peers create a T. Its result is the object. A caller must request that
// this agent keeps the object (rref::create does so).
template <class T>
MethodEntry constructor_entry() {
  using Traits = typename ConstructorOf<T>::Traits;
  using Arguments = typename Traits::Arguments;
  MethodEntry entry = described_entry(T::Service::name, "new", Traits::text(), Traits::parameters(),
                                      std::string(T::Service::name));
  entry.service.clear();  // it needs no object
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    Result<std::shared_ptr<T>> made = capture([&] {
      if (!call->keeps_result())
        throw Error(ErrorKind::invalid_argument, "a constructor can only be called by rref::create");
      auto arguments = decode_arguments<Arguments>(*call, std::make_index_sequence<Traits::arity>{});
      ContextScope scope(call->context());
      return std::apply([](auto&... argument) { return std::make_shared<T>(std::move(argument)...); },
                        arguments);
    });
    if (!made.ok()) return call->fail(made.error());
    call->keep(kept(std::move(made).get()));
  };
  return entry;
}

}  // namespace weft::rpc::detail
