// Entrance: lets one thread at a time inside; others wait, for a limited time, or continue without entering.
//
// A mutex (for std::unique_lock) whose waits have a timeout; those of std::timed_mutex are invisible to g++
// 12's ThreadSanitizer. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace weft::collectives::nccl {

class Entrance {
 public:
  // As those of std::timed_mutex. Not recursive.
  void lock() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return !taken_; });
    taken_ = true;
  }
  bool try_lock() {
    std::lock_guard lock(mutex_);
    return !std::exchange(taken_, true);
  }
  bool try_lock_for(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    if (!left_.wait_for(lock, timeout, [this] { return !taken_; })) return false;
    return taken_ = true;
  }
  void unlock() {
    std::lock_guard lock(mutex_);
    taken_ = false;
    left_.notify_one();  // under the lock: the next thread may destroy this
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable left_;
  bool taken_ = false;
};

}  // namespace weft::collectives::nccl
