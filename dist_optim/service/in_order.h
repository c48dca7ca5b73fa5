// InOrder: jobs one after the other, where a job's end is an event that it waits for: each says when the next
// may begin.
//
// Owner: whoever shares it with its jobs. Thread-safe; jobs run outside the mutex, on the thread of run() or
// of next().
#pragma once

#include <weft/rpc/core/unique_function.h>

#include <deque>
#include <mutex>

namespace weft::dist_optim {

class InOrder {
 public:
  // Now, or when all that came before have called next().
  void run(rpc::Callback job) {
    {
      std::lock_guard lock(mutex_);
      if (busy_) return waiting_.push_back(std::move(job));
      busy_ = true;
    }
    job();
  }
  // Once in every job's course.
  void next() {
    rpc::Callback job;
    {
      std::lock_guard lock(mutex_);
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
  std::mutex mutex_;  // guards the rest
  bool busy_ = false;
  std::deque<rpc::Callback> waiting_;
};

}  // namespace weft::dist_optim
