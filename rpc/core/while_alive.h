// while_alive: a callback that calls a function of an object while the object exists, and does nothing after
// that. It is for timers and continuations that must not keep the object alive.
//
//   timer_ = loop->schedule(when, while_alive(this, &Link::beat));
//
// The object must be owned by a shared_ptr. Thread-safety: as the function.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace weft::rpc {

template <class T, class F>
auto while_alive(T* object, F function) {
  return [weak = object->weak_from_this(), function = std::move(function)](auto&&... arguments) mutable {
    if (const auto alive = weak.lock())
      (void)std::invoke(function, *alive, std::forward<decltype(arguments)>(arguments)...);
  };
}

}  // namespace weft::rpc
