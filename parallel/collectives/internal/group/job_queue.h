// JobQueue: runs jobs one at a time, in the given order.
//
// run() is for short work that must run in turn at once, without a change of threads: if no thread is running
// jobs, the caller runs the earlier jobs, its own, and the jobs that are added meanwhile. post() leaves the
// job to an executor, or to a thread that is already running jobs. run_one() and run_first() run no jobs of
// other callers. A job may add further jobs. `failed` receives the exceptions of jobs, in turn; exceptions of
// `failed` itself are lost. Thread-safe.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/mutex.h>

#include <deque>
#include <exception>
#include <memory>
#include <utility>

namespace weft::collectives {

class JobQueue {
 public:
  using Failed = rpc::UniqueFunction<void(const std::exception_ptr&)>;  // on the thread that ran the job
  explicit JobQueue(Failed failed) : failed_(std::move(failed)) {}

  void run(rpc::Callback job) {
    rpc::MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
    run_all(lock);
  }
  // owner: keeps this object alive until the executor has run the jobs.
  void post(rpc::Callback job, rpc::Executor& executor, std::shared_ptr<void> owner) {
    {
      rpc::MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
      if (busy_ || std::exchange(posted_, true)) return;
    }
    leave_to(executor, std::move(owner));
  }
  // If there is no other job, runs this job here. Leaves all other jobs, including those that are added
  // meanwhile, to the executor.
  void run_one(rpc::Callback job, rpc::Executor& executor, std::shared_ptr<void> owner) {
    {
      rpc::MutexLock lock(mutex_);
      const bool alone = !busy_ && jobs_.empty();
      jobs_.push_back(std::move(job));
      if (alone) run_next(lock);
      if (busy_ || jobs_.empty() || std::exchange(posted_, true)) return;
    }
    leave_to(executor, std::move(owner));
  }
  // For jobs that only read. If no thread runs a job now, runs this job here, before the jobs that wait.
  // Otherwise leaves it to the executor.
  void run_first(rpc::Callback job, rpc::Executor& executor, std::shared_ptr<void> owner) {
    {
      rpc::MutexLock lock(mutex_);
      if (busy_) {
        jobs_.push_back(std::move(job));
      } else {
        jobs_.push_front(std::move(job));
        run_next(lock);
      }
      if (busy_ || jobs_.empty() || std::exchange(posted_, true)) return;
    }
    leave_to(executor, std::move(owner));
  }

 private:
  void leave_to(rpc::Executor& executor, std::shared_ptr<void> owner) {
    executor.post([this, owner = std::move(owner)] {
      rpc::MutexLock lock(mutex_);
      posted_ = false;
      run_all(lock);
    });
  }
  void run_all(rpc::MutexLock& lock) WEFT_REQUIRES(mutex_) {
    while (!busy_ && !jobs_.empty()) run_next(lock);
  }
  void run_next(rpc::MutexLock& lock) WEFT_REQUIRES(mutex_) {
    busy_ = true;
    rpc::Callback next = std::move(jobs_.front());
    jobs_.pop_front();
    {
      rpc::MutexUnlock unlocked(lock, mutex_);
      try {
        next();
      } catch (...) {
        tell(std::current_exception());
      }
      next = nullptr;  // its contents are destroyed outside the lock
    }
    busy_ = false;
  }
  void tell(const std::exception_ptr& error) noexcept {
    try {
      failed_(error);
    } catch (...) {
    }
  }

  Failed failed_;
  rpc::Mutex mutex_;
  std::deque<rpc::Callback> jobs_ WEFT_GUARDED_BY(mutex_);
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;    // a thread runs jobs
  bool posted_ WEFT_GUARDED_BY(mutex_) = false;  // an executor still has to run the jobs
};

}  // namespace weft::collectives
