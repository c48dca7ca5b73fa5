// Inside<T, Bytes>: stores a T within its owner, if only the owner's source file knows the type T. A pointer
// to a T would need an allocation.
//
// All functions of the owner that use the Inside, including constructors and destructor, must be defined
// where T is complete. T must fit into `Bytes`. Thread-safety: as T.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace weft::rpc {

template <class T, std::size_t Bytes>
class Inside {
 public:
  // Constructs T from the result of `make`.
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
