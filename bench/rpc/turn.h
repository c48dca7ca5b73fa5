// Turn: a number in shared memory by which one process signals another one. The waiting process spins on the
// number, or blocks on it as a futex. The number only grows, modulo 2^32. Thread-safety: one writer, one
// reader.
#pragma once

#include "bench/rpc/work.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace weft::bench {

inline void relax() {  // tells the core that this loop waits
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Turn {
 public:
  // Earlier writes are visible to the thread that advance() wakes. Waking a blocked thread needs a system
  // call.
  void advance(std::uint32_t to, Wait wait) {
    number_.store(to, std::memory_order_release);
    if (wait == Wait::blocking) syscall(SYS_futex, &number_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
  // Waits until the number is at least `at`.
  void await(std::uint32_t at, Wait wait) const {
    while (true) {
      const std::uint32_t now = number_.load(std::memory_order_acquire);
      if (static_cast<std::int32_t>(now - at) >= 0) return;
      if (wait == Wait::blocking) {
        syscall(SYS_futex, &number_, FUTEX_WAIT, now, nullptr, nullptr, 0);
      } else {
        relax();
      }
    }
  }

 private:
  std::atomic<std::uint32_t> number_{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace weft::bench
