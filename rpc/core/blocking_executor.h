// BlockingExecutor: runs one task on the calling thread until the task completes (Agent::run).
//
// run() may be called once; jobs posted after it has returned are dropped.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/task.h>

#include <deque>

namespace weft::rpc {

class WEFT_EXPORT BlockingExecutor final : public Executor {
 public:
  void post(Callback job) override {
    MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
    posted_.notify_one();
  }

  template <class T>
  T run(Task<T> task, ContextSwitch* context = nullptr) {
    std::optional<Result<T>> result;
    std::move(task).start_here(*this, context, [&](Result<T>&& value) { result.emplace(std::move(value)); });
    while (!result) next()();
    return std::move(*result).get();
  }

 private:
  Callback next() {
    MutexLock lock(mutex_);
    posted_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return !jobs_.empty(); });
    Callback job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  Mutex mutex_;
  Condition posted_;
  std::deque<Callback> jobs_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
