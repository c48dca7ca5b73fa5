// Turns: runs jobs one at a time, in the order given, on the threads that give them.
//
// Who finds nobody at it runs its job, and then those that were given meanwhile; a job may give further ones.
// For short work that has to be done in turn at once, without a hop to another thread. What a job throws is
// told to `failed`, in turn; what that throws is lost. Thread-safe.
#pragma once

#include <weft/rpc/core/unique_function.h>

#include <deque>
#include <exception>
#include <mutex>

namespace weft::collectives {

class Turns {
 public:
  using Failed = rpc::UniqueFunction<void(const std::exception_ptr&)>;
  explicit Turns(Failed failed) : failed_(std::move(failed)) {}

  void run(rpc::Job job) {
    std::unique_lock lock(mutex_);
    jobs_.push_back(std::move(job));
    if (busy_) return;
    busy_ = true;
    while (!jobs_.empty()) {
      rpc::Job next = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      try {
        next();
      } catch (...) {
        tell(std::current_exception());
      }
      next = nullptr;  // what it kept goes outside the lock
      lock.lock();
    }
    busy_ = false;
  }

 private:
  void tell(const std::exception_ptr& error) noexcept {
    try {
      failed_(error);
    } catch (...) {
    }
  }

  Failed failed_;
  std::mutex mutex_;  // guards what follows
  std::deque<rpc::Job> jobs_;
  bool busy_ = false;
};

}  // namespace weft::collectives
