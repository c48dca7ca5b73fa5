// Result<T>: how a piece of work ended: a value, or the exception that it ended with.
// Thread-safety: a value.
#pragma once

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

  // A Result<void> that succeeded is made without arguments.
  Result(Value value) : value_(std::move(value)) {}
  Result(std::exception_ptr error) : error_(std::move(error)) {}
  Result()
    requires std::is_void_v<T>
      : value_(Unit{}) {}

  // False: error() is set, and value() throws it.
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  const std::exception_ptr& error() const { return error_; }  // null where there is none
  // Throws error() if there is one.
  Value& value() & {
    rethrow();
    return *value_;
  }
  // The value, or the error thrown.
  T get() && {
    rethrow();
    if constexpr (!std::is_void_v<T>) return std::move(*value_);
  }

 private:
  void rethrow() const {
    if (!ok()) std::rethrow_exception(error_);
  }

  std::optional<Value>
      value_;  // rather than a std::variant, which costs every type that travels more to compile
  std::exception_ptr error_;
};

// Runs f and keeps what became of it.
template <class F, class T = std::invoke_result_t<F>>
Result<T> capture(F&& f) {
  try {
    if constexpr (std::is_void_v<T>) {
      std::forward<F>(f)();
      return Result<void>{};
    } else {
      return Result<T>(std::forward<F>(f)());
    }
  } catch (...) {
    return Result<T>(std::current_exception());
  }
}

}  // namespace weft::rpc
