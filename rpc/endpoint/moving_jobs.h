// MovingJobs: jobs that run one after another, in the order in which they were pushed, on a loop that may
// change.
//
// The jobs of `owner` are run by owner.run_job(job), whose exceptions go to the loop. The owner keeps this
// object alive. Thread-safe; functions that are marked "on the loop" are called in a turn of that loop.
#pragma once

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

namespace weft::rpc {

template <class Owner, class Job>
class MovingJobs final {
 public:
  explicit MovingJobs(std::shared_ptr<Loop> loop) : loop_(std::move(loop)), home_(loop_.get()) {}

  // loop(): on the loop. is_at(): any thread.
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  bool is_at(const Loop& loop) const { return home_.load() == &loop; }
  // Whether the calling thread is in a turn of the loop, and no earlier job is left. A job may then be run
  // without push().
  bool is_first_here() const {
    // In this order: move_to() sets is_working_ before it changes home_.
    return home_.load(std::memory_order_acquire)->running_here() &&
           !is_working_.load(std::memory_order_acquire);
  }

  // Adds a job behind all others.
  void push(const std::shared_ptr<Owner>& owner, Job job) {
    std::shared_ptr<Loop> loop;
    {
      MutexLock lock(mutex_);
      jobs_.push(std::move(job));
      if (is_working_.exchange(true)) return;
      loop = loop_;
    }
    post(owner, *loop);
  }
  // On the loop: later jobs run on `loop`, `next` before all others.
  void move_to(const std::shared_ptr<Owner>& owner, const std::shared_ptr<Loop>& loop, Job next) {
    bool must_post = false;
    {
      MutexLock lock(mutex_);
      must_post = !is_working_.exchange(true);
      jobs_.push_front(std::move(next));
      loop_ = loop;
      home_.store(loop.get(), std::memory_order_release);
    }
    if (must_post) post(owner, *loop);
  }
  // On the loop `here`: runs the jobs that are left, until there is none or they have moved to another loop.
  void run_all(const std::shared_ptr<Owner>& owner, const Loop& here) {
    for (;;) {
      std::optional<Job> job;
      std::shared_ptr<Loop> moved_to;
      {
        MutexLock lock(mutex_);
        if (jobs_.empty()) {
          is_working_ = false;
          return;
        }
        if (loop_.get() == &here)
          job.emplace(jobs_.pop());
        else
          moved_to = loop_;
      }
      if (moved_to != nullptr) return post(owner, *moved_to);
      try {
        owner->run_job(std::move(*job));
      } catch (...) {
        here.exceptions()->take("a job of a session", std::current_exception());
      }
    }
  }

 private:
  void post(const std::shared_ptr<Owner>& owner, Loop& loop) {
    loop.post([this, owner, here = &loop] { run_all(owner, *here); });
  }

  mutable Mutex mutex_;
  // Changes in a job only, with the mutex locked, so it may be read without the mutex on the loop. home_: the
  // same.
  std::shared_ptr<Loop> loop_;
  Fifo<Job> jobs_ WEFT_GUARDED_BY(mutex_);
  std::atomic<const Loop*> home_;
  std::atomic<bool> is_working_{false};  // run_all() is posted or runs; written with the mutex locked
};

}  // namespace weft::rpc
