// AsyncMutex: runs jobs one after the other, where each job reports when the next one may start.
//
// Owner: shared with its jobs. Thread-safe; jobs run outside the mutex, on the thread of run() or of next().
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <deque>

namespace weft::dist_optim {

class AsyncMutex {
 public:
  // Runs the job now, or when all earlier jobs have called next().
  void run(rpc::Callback job) {
    {
      rpc::MutexLock lock(mutex_);
      if (busy_) return waiting_.push_back(std::move(job));
      busy_ = true;
    }
    job();
  }
  // Each job calls it once: the next job may start.
  void next() {
    rpc::Callback job;
    {
      rpc::MutexLock lock(mutex_);
      if (waiting_.empty()) {
        busy_ = false;
        return;
      }
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    job();
  }

 private:
  rpc::Mutex mutex_;
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;
  std::deque<rpc::Callback> waiting_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_optim
