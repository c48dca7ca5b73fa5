// Entrance: lets one thread at a time inside. Other threads wait, wait for a limited time, or continue
// without entering.
//
// It is a mutex with a timeout, for std::unique_lock. It replaces std::timed_mutex, whose timed waits g++
// 12's ThreadSanitizer does not see. clang's thread-safety analysis does not follow std::unique_lock, so it
// does not check the members that an Entrance guards. Thread-safe.
#pragma once

#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <mutex>

namespace weft::collectives::nccl {

class Entrance {
 public:
  // The functions of std::timed_mutex. Not recursive.
  void lock() {
    rpc::MutexLock lock(mutex_);
    left_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return !taken_; });
    taken_ = true;
  }
  bool try_lock() {
    rpc::MutexLock lock(mutex_);
    return !std::exchange(taken_, true);
  }
  bool try_lock_for(std::chrono::nanoseconds timeout) {
    rpc::MutexLock lock(mutex_);
    if (!left_.wait_for(lock, timeout, [this]() WEFT_REQUIRES(mutex_) { return !taken_; })) return false;
    return taken_ = true;
  }
  void unlock() {
    rpc::MutexLock lock(mutex_);
    taken_ = false;
    left_.notify_one();  // under the lock: the next thread may destroy this
  }

 private:
  rpc::Mutex mutex_;
  rpc::Condition left_;
  bool taken_ WEFT_GUARDED_BY(mutex_) = false;
};

}  // namespace weft::collectives::nccl
