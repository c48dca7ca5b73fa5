// UniqueFunction: a move-only callable that stores small closures without allocation.
//
// std::function requires copyable closures, and C++20 has no move_only_function. Thread-safety: none.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace weft::rpc {

template <class Signature>
class UniqueFunction;

template <class Result, class... Args>
class UniqueFunction<Result(Args...)> {
 public:
  UniqueFunction() = default;
  UniqueFunction(std::nullptr_t) {}

  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, UniqueFunction> &&
             std::is_invocable_r_v<Result, F&, Args...>)
  UniqueFunction(F&& f) {
    using Stored = std::decay_t<F>;
    if constexpr (fits<Stored>) {
      ::new (static_cast<void*>(storage_)) Stored(std::forward<F>(f));
      operations_ = &inline_operations<Stored>;
    } else {
      ::new (static_cast<void*>(storage_)) Stored*(new Stored(std::forward<F>(f)));
      operations_ = &heap_operations<Stored>;
    }
  }

  UniqueFunction(UniqueFunction&& other) noexcept { take(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~UniqueFunction() { reset(); }

  explicit operator bool() const { return operations_ != nullptr; }
  // The function must not be empty.
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
  Result operator()(Args... args) { return operations_->invoke(storage_, std::forward<Args>(args)...); }

 private:
  static constexpr std::size_t capacity = 48;

  struct Operations {
    Result (*invoke)(std::byte*, Args&&...);
    void (*relocate)(std::byte* from, std::byte* to) noexcept;
    void (*destroy)(std::byte*) noexcept;
  };

  template <class F>
  static constexpr bool fits = sizeof(F) <= capacity && alignof(F) <= alignof(std::max_align_t) &&
                               std::is_nothrow_move_constructible_v<F>;

  template <class F>
  static F& inside(std::byte* storage) {
    return *std::launder(reinterpret_cast<F*>(storage));
  }

  template <class F>
  static constexpr Operations inline_operations{
      [](std::byte* s, Args&&... args) -> Result {
        return static_cast<Result>(inside<F>(s)(std::forward<Args>(args)...));
      },
      [](std::byte* from, std::byte* to) noexcept {
        ::new (static_cast<void*>(to)) F(std::move(inside<F>(from)));
        inside<F>(from).~F();
      },
      [](std::byte* s) noexcept { inside<F>(s).~F(); }};

  template <class F>
  static constexpr Operations heap_operations{
      [](std::byte* s, Args&&... args) -> Result {
        return static_cast<Result>((*inside<F*>(s))(std::forward<Args>(args)...));
      },
      [](std::byte* from, std::byte* to) noexcept { ::new (static_cast<void*>(to)) F*(inside<F*>(from)); },
      [](std::byte* s) noexcept { delete inside<F*>(s); }};

  void take(UniqueFunction& other) noexcept {
    if (other.operations_ == nullptr) return;
    other.operations_->relocate(other.storage_, storage_);
    operations_ = std::exchange(other.operations_, nullptr);
  }
  void reset() noexcept {
    if (const Operations* old = std::exchange(operations_, nullptr)) old->destroy(storage_);
  }

  const Operations* operations_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[capacity];
};

// A callable without arguments.
using Callback = UniqueFunction<void()>;

}  // namespace weft::rpc
