// Functions and types with which tests wait for the actions of other threads, never for a fixed time. A wait
// of more than a minute throws. Thread-safe.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace weft::test {

// The longest wait. After it, waits throw std::runtime_error.
inline constexpr std::chrono::seconds too_long{60};

// A value that one thread passes to another, which waits for it.
template <class T>
class Handover {
 public:
  // Does not block. Replaces a value that was not taken.
  void give(T value) {
    rpc::MutexLock lock(mutex_);
    value_.emplace(std::move(value));
    given_.notify_all();
  }
  // Waits for the value and removes it.
  T take() {
    rpc::MutexLock lock(mutex_);
    if (!given_.wait_for(lock, too_long, [this]() WEFT_REQUIRES(mutex_) { return value_.has_value(); }))
      throw std::runtime_error("no value arrived within a minute");
    return std::move(*std::exchange(value_, std::nullopt));
  }
  // Whether take() would return at once.
  bool given() const {
    rpc::MutexLock lock(mutex_);
    return value_.has_value();
  }

 private:
  mutable rpc::Mutex mutex_;
  rpc::Condition given_;
  std::optional<T> value_ WEFT_GUARDED_BY(mutex_);
};

// An event that occurs once and remains set.
class Event {
 public:
  // Idempotent.
  void set() { latch_.open(); }
  // Whether wait() would return at once.
  bool is_set() const { return latch_.wait_for({}); }
  // Blocks until set() was called. Any number of threads may wait.
  void wait() {
    if (!latch_.wait_for(too_long)) throw std::runtime_error("the event was not set within a minute");
  }

 private:
  mutable rpc::detail::Latch latch_;
};

// The value of a future; throws after a minute.
template <class T>
T got(rpc::Future<T> future) {
  auto handover = std::make_shared<Handover<rpc::Result<T>>>();
  std::move(future).then([handover](rpc::Result<T>&& result) { handover->give(std::move(result)); });
  return handover->take().get();
}

}  // namespace weft::test
