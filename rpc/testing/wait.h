// Waiting in tests for the actions of other threads, never for a fixed time. A wait of more than a minute
// throws. Thread-safe.
#pragma once

#include <weft/rpc/core/future.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
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
    std::lock_guard lock(mutex_);
    value_.emplace(std::move(value));
    given_.notify_all();
  }
  // Waits for the value and removes it.
  T take() {
    std::unique_lock lock(mutex_);
    if (!given_.wait_for(lock, too_long, [this] { return value_.has_value(); }))
      throw std::runtime_error("no value arrived within a minute");
    return std::move(*std::exchange(value_, std::nullopt));
  }
  // Whether take() would return at once.
  bool given() const {
    std::lock_guard lock(mutex_);
    return value_.has_value();
  }

 private:
  mutable std::mutex mutex_;  // guards value_
  std::condition_variable given_;
  std::optional<T> value_;
};

// Something that happens once and remains set.
class Event {
 public:
  // Idempotent.
  void set() {
    std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  // Whether wait() would return at once.
  bool is_set() const {
    std::lock_guard lock(mutex_);
    return set_;
  }
  // Blocks until set(). Any number of threads.
  void wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, too_long, [this] { return set_; }))
      throw std::runtime_error("no value arrived within a minute");
  }

 private:
  mutable std::mutex mutex_;  // guards set_
  std::condition_variable changed_;
  bool set_ = false;
};

// The value of a future; throws after a minute.
template <class T>
T got(rpc::Future<T> future) {
  auto handover = std::make_shared<Handover<rpc::Result<T>>>();
  std::move(future).then([handover](rpc::Result<T>&& result) { handover->give(std::move(result)); });
  return handover->take().get();
}

}  // namespace weft::test
