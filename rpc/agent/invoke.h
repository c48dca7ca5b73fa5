// The typed ends of a call: encoding a caller's arguments, and the thunk that runs a handler behind a
// MethodEntry.
#pragma once

#include <weft/rpc/agent/incoming_call.h>
#include <weft/rpc/agent/method.h>
#include <weft/rpc/core/asio_executor.h>
#include <weft/rpc/core/serial_executor.h>

#include <asio/bind_cancellation_slot.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>

namespace weft::rpc::detail {

// What the arguments given to a call must be, as a compile-time answer rather than a failed substitution.
template <class Given, class Parameter>
concept Fits = StandsFor<std::decay_t<Given>, Parameter>::value || std::is_convertible_v<Given, Parameter>;

template <class Parameter, class Given>
void encode_argument(ValueWriter writer, Given&& given) {
  using Plain = std::decay_t<Given>;
  if constexpr (StandsFor<Plain, Parameter>::value) {
    Codec<Plain>::encode(writer, given);
  } else if constexpr (std::same_as<Plain, Parameter>) {
    Codec<Parameter>::encode(writer, given);
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

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class Parameter>
Parameter decode_argument(const IncomingCall& call, std::size_t i) {
  if (i >= call.argument_count()) {
    // A caller from before this parameter was added.
    if constexpr (is_optional<Parameter>) return std::nullopt;
    throw Error(ErrorKind::type_mismatch,
                "argument " + std::to_string(i) + " is missing: expected " + type_text<Parameter>());
  }
  try {
    return Codec<Parameter>::decode(call.argument(i));
  } catch (const Error& error) {
    throw Error(error.kind(), "argument " + std::to_string(i) + ": " + error.what());
  }
}

template <class Arguments, std::size_t... I>
Arguments decode_arguments(const IncomingCall& call, std::index_sequence<I...>) {
  if (call.argument_count() > sizeof...(I))
    throw Error(ErrorKind::type_mismatch, "expected " + std::to_string(sizeof...(I)) + " arguments, found " +
                                              std::to_string(call.argument_count()));
  return Arguments{decode_argument<std::tuple_element_t<I, Arguments>>(call, I)...};
}

template <class T>
void throw_pointer(void* object) {
  throw static_cast<T*>(object);
}

// The value as an Object, where it is one or derived from it; else null.
template <class Object>
void* object_in(const KeptValue& kept) {
  if (kept.throw_pointer == &throw_pointer<Object>) return kept.value.get();
  if (kept.throw_pointer == nullptr) return nullptr;
  try {
    kept.throw_pointer(kept.value.get());
  } catch (Object* object) {
    return object;
  } catch (...) {
  }
  return nullptr;
}

template <class T>
KeptValue kept(std::shared_ptr<T> value) {
  KeptValue kept;
  if constexpr (Served<T>) kept.service = kept.type = T::Service::name;
  if constexpr (requires { requires T::concurrent; }) kept.concurrent = true;
  if constexpr (Transferable<T>) {
    kept.type = type_text<T>();
    kept.encode = [](ValueWriter writer, const void* object) {
      Codec<T>::encode(writer, *static_cast<const T*>(object));
    };
  }
  if constexpr (std::is_class_v<T>) kept.throw_pointer = &throw_pointer<T>;
  kept.value = std::move(value);
  return kept;
}

// Ends a call with what its handler produced.
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

// Runs a handler that is Asio's coroutine, on the call's executor; the call's cancellation is the
// coroutine's.
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
  if constexpr (std::is_void_v<T>) {
    asio::co_spawn(executor, std::move(awaitable),
                   asio::bind_cancellation_slot(slot, [call](std::exception_ptr error) {
                     answer(*call, error != nullptr ? Result<void>(error) : Result<void>{});
                   }));
  } else {
    asio::co_spawn(executor, std::move(awaitable),
                   asio::bind_cancellation_slot(slot, [call](std::exception_ptr error, T value) {
                     answer(*call, error != nullptr ? Result<T>(error) : Result<T>(std::move(value)));
                   }));
  }
}

template <class M>
void run_handler(const std::shared_ptr<IncomingCall>& call) {
  using Traits = typename M::Traits;
  using Returned = typename Traits::Returned;
  using Arguments = typename Traits::Arguments;
  std::optional<Arguments> arguments;
  try {
    arguments.emplace(decode_arguments<Arguments>(*call, std::make_index_sequence<Traits::arity>{}));
  } catch (const Error&) {
    return call->refuse(std::current_exception());
  } catch (const std::exception& bad) {
    return call->refuse(std::make_exception_ptr(
        Error(ErrorKind::invalid_argument, std::string("malformed arguments: ") + bad.what())));
  }
  const auto invoke = [&]() -> Returned {
    return std::apply(
        [&](auto&... argument) -> Returned {
          if constexpr (std::is_void_v<typename Traits::Object>) {
            if constexpr (Traits::takes_context) {
              return (*M::target)(static_cast<CallContext&>(*call), std::move(argument)...);
            } else {
              return (*M::target)(std::move(argument)...);
            }
          } else {
            auto& object = *static_cast<typename Traits::Object*>(call->object());
            if constexpr (Traits::takes_context) {
              return (object.*M::target)(static_cast<CallContext&>(*call), std::move(argument)...);
            } else {
              return (object.*M::target)(std::move(argument)...);
            }
          }
        },
        *arguments);
  };
  using Value = typename Traits::Result;
  if constexpr (std::same_as<Returned, Task<Value>>) {
    // The call outlives the coroutine, which may refer to its context.
    Result<Task<Value>> made = capture([&] { return invoke(); });
    if (!made.ok()) return call->fail(made.error());
    std::move(made).get().start_here(call->executor(), call->context(),
                                     [call](Result<Value>&& result) { answer(*call, std::move(result)); });
  } else if constexpr (is_coroutine<Returned>) {
    Result<Returned> made = capture([&] { return invoke(); });
    if (!made.ok()) return call->fail(made.error());
    run_awaitable<Value>(call, std::move(made).get());
  } else if constexpr (std::same_as<Returned, Future<Value>>) {
    Result<Future<Value>> made = [&] {
      ContextScope scope(call->context());
      return capture([&] { return invoke(); });
    }();
    if (!made.ok()) return call->fail(made.error());
    call->release_object();
    std::move(made).get().then([call](Result<Value>&& result) { answer(*call, std::move(result)); });
  } else {
    Result<Value> result = [&] {
      ContextScope scope(call->context());
      return capture([&] { return invoke(); });
    }();
    arguments.reset();
    answer(*call, std::move(result));
  }
}

// The entry of a method, without an object.
template <class M>
MethodEntry method_entry(std::string_view service) {
  using Traits = typename M::Traits;
  MethodEntry entry;
  entry.name =
      service.empty() ? std::string(M::short_name) : std::string(service) + "." + std::string(M::short_name);
  entry.id = name_hash(entry.name);
  entry.service = service;
  entry.signature = Traits::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.parameters = Traits::parameters();
  entry.result = type_text<typename Traits::Result>();
  entry.idempotent = M::is_idempotent;
  entry.non_blocking = M::is_non_blocking;
  if constexpr (!std::is_void_v<typename Traits::Object>) {
    entry.needs_object = true;
    entry.object_in = &object_in<typename Traits::Object>;
  }
  entry.run = [](std::shared_ptr<IncomingCall> call) { run_handler<M>(call); };
  return entry;
}

// Serves every method of T's service on `object`; null: on what a layer above resolves.
template <class Core, class T>
void serve_object(Core& core, const std::shared_ptr<T>& object) {
  [&]<class... Items>(std::tuple<Items...>*) {
    const auto one = [&]<class Item>(std::type_identity<Item>) {
      if constexpr (!is_constructor<Item>) {
        MethodEntry entry = method_entry<Item>(T::Service::name);
        entry.object = std::shared_ptr<typename Item::Traits::Object>(object);
        core.serve(std::move(entry));
      }
    };
    (one(std::type_identity<Items>{}), ...);
  }(static_cast<typename T::Service::Entries*>(nullptr));
}

// The entry by which peers create a T; its result is the object, which the caller must ask to have kept.
template <class T>
MethodEntry constructor_entry() {
  using Traits = typename ConstructorOf<T>::Traits;
  using Arguments = typename Traits::Arguments;
  MethodEntry entry;
  entry.name = std::string(T::Service::name) + ".new";
  entry.id = name_hash(entry.name);
  entry.signature = Traits::text();
  entry.signature_hash = name_hash(entry.signature);
  entry.parameters = Traits::parameters();
  entry.result = T::Service::name;
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    Result<std::shared_ptr<T>> made = capture([&] {
      if (!call->keeps_result())
        throw Error(ErrorKind::invalid_argument, "a constructor is called by rref::create");
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
