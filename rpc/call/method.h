// Typed methods: a C++ function and its stable name on the wire, known at compile time on both sides.
//
//   struct Greeter {
//     std::string greet(std::string name) const;
//     using Service = rpc::Service<"greeter", rpc::Method<"greet", &Greeter::greet>>;
//   };
//   using Halve = rpc::Function<"halve", &halve>;
//
// A handler may have a CallContext& before its parameters; callers do not pass it. A handler returns a value,
// nothing, a Task, a Future, or an asio::awaitable. Coroutines take their parameters by value. Parameters and
// results are Transferable. A method is identified by the hash of "service.method".
#pragma once

#include <weft/rpc/codec/codec.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/fixed_string.h>
#include <weft/rpc/core/task.h>

#include <asio/awaitable.hpp>

#include <concepts>
#include <tuple>

namespace weft::rpc {

class CallContext;

// Options of a method.
struct Idempotent {};
// Running the method twice has the effect of running it once, so its calls may be retried.
inline constexpr Idempotent idempotent{};
struct NonBlocking {};
inline constexpr NonBlocking non_blocking{};  // the method runs on the loop, so it must return at once
struct Background {};
// A call may stay in flight as long as its agents exist (a subscription). Job::quiesce() does not wait for
// it.
inline constexpr Background background{};

// Whether an argument of type Stand may be passed for a parameter of type T. RRefs specialize it.
template <class Stand, class T>
struct StandsFor : std::false_type {};

// The value that is sent if the result of a handler is a Future<T>: by default the T. A layer with a wrapper
// type specializes FutureResult for the wrapper: `Type` is the type of the value in the wrapper, and `static
// Type take(Wrapper&&, IncomingCall&)` returns the value, on the thread that completes the future.
template <class T>
struct FutureResult {
  using Type = T;
};

namespace detail {

template <class T>
inline constexpr bool is_coroutine = false;
template <class T>
inline constexpr bool is_coroutine<Task<T>> = true;
template <class T, class AsioExecutor>
inline constexpr bool is_coroutine<asio::awaitable<T, AsioExecutor>> = true;

template <class T>
inline constexpr bool is_future = false;
template <class T>
inline constexpr bool is_future<Future<T>> = true;

// The type of the result of a handler that returns a T.
template <class T>
struct Unwrapped {
  using Type = T;
};
template <class T>
struct Unwrapped<Future<T>> {
  using Type = typename FutureResult<T>::Type;
};
template <template <class...> class Coroutine, class T, class... More>
  requires is_coroutine<Coroutine<T, More...>>
struct Unwrapped<Coroutine<T, More...>> {
  using Type = T;
};

// Whether code of the handler continues to run after the handler has returned its result. Streams specialize
// it.
template <class T>
inline constexpr bool runs_on = is_coroutine<T>;

template <class Return, class... Parameters>
struct Signature {
  static_assert(
      !runs_on<Return> || !(std::is_reference_v<Parameters> || ...),
      "weft: a handler that is a coroutine takes its parameters by value: it outlives its arguments");
  using Returned = Return;                          // as declared
  using Result = typename Unwrapped<Return>::Type;  // what is sent
  using Arguments = std::tuple<std::decay_t<Parameters>...>;
  static constexpr std::size_t arity = sizeof...(Parameters);

  static std::string text() {
    TypeText text;
    text << "(";
    std::string_view separator;
    ((text << separator, separator = ",", Codec<std::decay_t<Parameters>>::describe(text)), ...);
    text << ")->" << type_text<Result>();
    return text.take();
  }
  static std::vector<std::string> parameters() { return {type_text<std::decay_t<Parameters>>()...}; }
};

// Strips a leading CallContext&.
template <class Return, class... Parameters>
struct HandlerSignature : Signature<Return, Parameters...> {
  static constexpr bool takes_context = false;
};
template <class Return, class... Parameters>
struct HandlerSignature<Return, CallContext&, Parameters...> : Signature<Return, Parameters...> {
  static constexpr bool takes_context = true;
};

template <class F>
struct HandlerTraits;
template <class R, class... P>
struct HandlerTraits<R (*)(P...)> : HandlerSignature<R, P...> {
  using Object = void;
};
template <class R, class... P>
struct HandlerTraits<R (*)(P...) noexcept> : HandlerTraits<R (*)(P...)> {};
template <class R, class C, class... P>
struct HandlerTraits<R (C::*)(P...)> : HandlerSignature<R, P...> {
  using Object = C;
};
template <class R, class C, class... P>
struct HandlerTraits<R (C::*)(P...) const> : HandlerTraits<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct HandlerTraits<R (C::*)(P...) noexcept> : HandlerTraits<R (C::*)(P...)> {};
template <class R, class C, class... P>
struct HandlerTraits<R (C::*)(P...) const noexcept> : HandlerTraits<R (C::*)(P...)> {};

template <auto Value>
struct Constant {};

// `Type` is the type of Target. It is a separate parameter because of a defect of g++ (seen with version 12).
// If the only template argument that refers to an unnamed namespace is a pointer to member of a type there,
// g++ gives the template external linkage. Two files with a `Worker` in an unnamed namespace would then
// silently share one of their handlers.
template <class Type, FixedString Name, auto Target, auto... Options>
struct MethodOf {
  template <class Option>
  static constexpr bool has = (std::same_as<std::remove_cv_t<decltype(Options)>, Option> || ...);
  using Traits = HandlerTraits<Type>;
  static constexpr auto target = Target;
  static constexpr std::string_view short_name = Name.view();
  static constexpr bool is_idempotent = has<Idempotent>;
  static constexpr bool is_non_blocking = has<NonBlocking>;
  static constexpr bool is_background = has<Background>;
};

template <class FunctionType, FixedString Name, auto Target, auto... Options>
struct FunctionOf : MethodOf<FunctionType, Name, Target, Options...> {
  using Type = FunctionOf;  // like FoundMethod::Type
  static constexpr std::string_view name = Name.view();
  static constexpr std::uint64_t id = name_hash(name);
};

}  // namespace detail

// One method of a service: Target is a pointer to a member function of the served type.
template <FixedString Name, auto Target, auto... Options>
using Method = detail::MethodOf<decltype(Target), Name, Target, Options...>;

// A free function under its own name.
template <FixedString Name, auto Target, auto... Options>
using Function = detail::FunctionOf<decltype(Target), Name, Target, Options...>;

// A constructor that peers may call, if the agent allows the type (Agent::allow_create).
template <class... Parameters>
struct Constructor {
  using Traits = detail::Signature<void, Parameters...>;  // describes its parameters
  static constexpr std::string_view short_name = "new";
};

namespace detail {

template <class Item>
inline constexpr bool is_constructor = false;
template <class... P>
inline constexpr bool is_constructor<Constructor<P...>> = true;

template <class... Items>
consteval bool names_differ() {
  const std::string_view names[] = {Items::short_name..., std::string_view{}};
  for (std::size_t i = 0; i < sizeof...(Items); ++i)
    for (std::size_t j = i + 1; j < sizeof...(Items); ++j)
      if (names[i] == names[j]) return false;
  return true;
}

}  // namespace detail

template <FixedString Name, class... Items>
struct Service {
  static_assert(detail::names_differ<Items...>(), "weft: two methods of this service have the same name");
  static constexpr std::string_view name = Name.view();
  using Entries = std::tuple<Items...>;  // the listed methods and constructors
  // The id on the wire of the method with this short name, whether or not the service lists it.
  static constexpr std::uint64_t id_of(std::string_view method) {
    return name_hash(method, name_hash(".", name_hash(name)));
  }
};

// A class that has a Service.
template <class T>
concept Served = requires { typename T::Service::Entries; };

// A Function: it has a name and a target.
template <class F>
concept NamedFunction = requires {
  { F::name } -> std::convertible_to<std::string_view>;
  F::target;
};

namespace detail {

// Whether an entry of a service is the method Target.
template <class Item, auto Target>
inline constexpr bool is_of = requires { requires std::same_as<Constant<Item::target>, Constant<Target>>; };

// The index of the first true value, or the number of values.
template <bool... Values>
constexpr std::size_t first_true() {
  constexpr bool values[] = {Values..., true};
  std::size_t i = 0;
  while (!values[i]) ++i;
  return i;
}

// The entry of a service that lists Target. If none does, `Type` is an unnamed method of Target, so that the
// compiler reports no further error.
template <auto Target, class Entries>
struct MethodFor;
template <auto Target, class... Items>
struct MethodFor<Target, std::tuple<Items...>> {
  static constexpr bool exists = (is_of<Items, Target> || ...);
  using Type =
      std::tuple_element_t<first_true<is_of<Items, Target>...>(), std::tuple<Items..., Method<"", Target>>>;
};

// The class whose service lists the method Target of an object of type T. If the service of T lists the
// method, which T may inherit, the result is T; otherwise the result is the class that declares the method.
template <class T, auto Target, class TypeOfTarget = decltype(Target)>
constexpr auto listing_class() {
  using Declaring = typename HandlerTraits<TypeOfTarget>::Object;
  if constexpr (requires { requires MethodFor<Target, typename T::Service::Entries>::exists; }) {
    return std::type_identity<T>{};
  } else {
    return std::type_identity<Declaring>{};
  }
}

// The constructor that a service lists, or the default one.
template <class Entries>
struct ConstructorIn;
template <class... Items>
struct ConstructorIn<std::tuple<Items...>> {
  using Type =
      std::tuple_element_t<first_true<is_constructor<Items>...>(), std::tuple<Items..., Constructor<>>>;
};
template <class T>
using ConstructorOf = typename ConstructorIn<typename T::Service::Entries>::Type;

struct NoService {
  using Service = rpc::Service<"">;
};

}  // namespace detail

// The entry for Target in the service of the class In. By default, In is the class that declares Target.
template <auto Target, class TypeOfTarget = decltype(Target),
          class In = typename detail::HandlerTraits<TypeOfTarget>::Object>
struct FoundMethod {
  using Class = In;  // the class whose service lists Target
  static_assert(Served<Class>,
                "weft: the class that declares this member function has no Service; for an inherited method "
                "name the class that lists it: peer.call<Derived, &Derived::f>()");
  // If the assertion fails, an empty service is used, so that the compiler reports no further error.
  using Service = typename std::conditional_t<Served<Class>, Class, detail::NoService>::Service;
  using Entries = typename Service::Entries;
  static_assert(!Served<Class> || detail::MethodFor<Target, Entries>::exists,
                "weft: this member function is not among the methods of its class's Service");
  // The entry in the service.
  using Type = typename detail::MethodFor<Target, Entries>::Type;
  // The name of the method ("service.method") and its id on the wire.
  static inline const std::string name = std::string(Service::name) + "." + std::string(Type::short_name);
  static constexpr std::uint64_t id = Service::id_of(Type::short_name);
};

}  // namespace weft::rpc
