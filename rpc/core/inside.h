// Inside<T, Bytes>: a T whose type only its owner's source knows, kept within the owner: a pointer to it
// would cost every owner an allocation.
//
// Whatever the owner does with it, construction and destruction too, stands where T is complete, which must
// fit. Thread-safety: T's.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace weft::rpc {

template <class T, std::size_t Bytes>
class Inside {
 public:
  // From what `make` returns.
  template <class Make>
  explicit Inside(Make&& make) {
    static_assert(sizeof(T) <= Bytes && alignof(T) <= alignof(std::max_align_t));
    ::new (static_cast<void*>(bytes_)) T(std::forward<Make>(make)());
  }
  ~Inside() { get().~T(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  T& operator*() { return get(); }
  const T& operator*() const { return get(); }
  T* operator->() { return &get(); }
  const T* operator->() const { return &get(); }

 private:
  T& get() { return *std::launder(reinterpret_cast<T*>(bytes_)); }
  const T& get() const { return *std::launder(reinterpret_cast<const T*>(bytes_)); }
  alignas(std::max_align_t) std::byte bytes_[Bytes];
};

}  // namespace weft::rpc
