// Result<T>: how a piece of work ended: a value, or the exception that it ended with.
// Thread-safety: a value.
#pragma once

#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

namespace weft::rpc {

struct Unit {};  // the value of Result<void>

template <class T>
class Result {
 public:
  using Value = std::conditional_t<std::is_void_v<T>, Unit, T>;

  Result(Value value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(std::exception_ptr error) : state_(std::in_place_index<1>, std::move(error)) {}
  Result()
    requires std::is_void_v<T>
      : state_(std::in_place_index<0>) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  const std::exception_ptr& error() const { return std::get<1>(state_); }
  Value& value() & {
    rethrow();
    return std::get<0>(state_);
  }
  // The value, or the error thrown.
  T get() && {
    rethrow();
    if constexpr (!std::is_void_v<T>) return std::move(std::get<0>(state_));
  }

 private:
  void rethrow() const {
    if (!ok()) std::rethrow_exception(std::get<1>(state_));
  }

  std::variant<Value, std::exception_ptr> state_;
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
