// Result<T>: a value, or the exception with which an operation failed. Thread-safety: a value.
#pragma once

#include <concepts>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft::rpc {

struct Unit {};  // the value of Result<void>

template <class T>
class Result {
 public:
  // The type of a value.
  using Value = std::conditional_t<std::is_void_v<T>, Unit, T>;

  // A successful Result<void> is constructed without arguments.
  Result(Value value) : value_(std::move(value)) {}
  Result(std::exception_ptr error) : error_(std::move(error)) {}
  template <std::derived_from<std::exception> E>
  Result(E error) : error_(std::make_exception_ptr(std::move(error))) {}
  Result()
    requires std::is_void_v<T>
      : value_(Unit{}) {}

  // Whether there is a value. If not, error() is set, and value() throws it.
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  const std::exception_ptr& error() const { return error_; }  // null if ok()
  // Throws error() if there is one.
  Value& value() & {
    rethrow();
    return *value_;
  }
  // Returns the value, or throws the error.
  T get() && {
    rethrow();
    if constexpr (!std::is_void_v<T>) return std::move(*value_);
  }

 private:
  void rethrow() const {
    if (!ok()) std::rethrow_exception(error_);
  }

  std::optional<Value> value_;  // not a std::variant, which costs more to compile for each type
  std::exception_ptr error_;
};

namespace detail {

template <class T>
struct Flatten {
  using Type = T;
};
template <class T>
struct Flatten<Result<T>> {
  using Type = T;
};

}  // namespace detail

// Runs f and returns its value, Result or exception.
template <class F, class T = typename detail::Flatten<std::invoke_result_t<F>>::Type>
Result<T> capture(F&& f) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
      std::forward<F>(f)();
      return Result<void>{};
    } else {
      return std::forward<F>(f)();
    }
  } catch (...) {
    return Result<T>(std::current_exception());
  }
}

}  // namespace weft::rpc
