// Attempts: the connections of a transport that are being made, which abort() ends. Thread-safe.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace weft::rpc {

// Attempt: has loop(), and abort(), which runs on that loop.
template <class Attempt>
class Attempts {
 public:
  void add(const std::shared_ptr<Attempt>& attempt) {
    MutexLock lock(mutex_);
    if (attempts_.size() >= prune_at_) {  // amortized: pruning at each call would cost O(n^2)
      std::erase_if(attempts_, [](const auto& old) { return old.expired(); });
      prune_at_ = std::max<std::size_t>(16, 2 * attempts_.size());
    }
    attempts_.push_back(attempt);
  }
  void abort() {
    std::vector<std::weak_ptr<Attempt>> attempts;
    {
      MutexLock lock(mutex_);
      attempts.swap(attempts_);
    }
    for (const auto& weak : attempts) {
      const auto attempt = weak.lock();
      if (attempt == nullptr) continue;
      if (attempt->loop()->owns_thread()) {
        attempt->loop()->post([attempt] { attempt->abort(); });
      } else {
        attempt->abort();  // an agent on the program's io_context is closed on the thread that runs it
      }
    }
  }

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<Attempt>> attempts_ WEFT_GUARDED_BY(mutex_);
  std::size_t prune_at_ WEFT_GUARDED_BY(mutex_) = 16;
};

}  // namespace weft::rpc
