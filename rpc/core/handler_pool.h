// HandlerPool: the threads on which handlers run, separate from the loops.
//
// Owned by an agent. Its threads are marked as OwnedThread, so a blocking wait on these threads throws,
// except in a Blocking scope. join() runs the queued jobs, then ends the threads. Jobs that are posted later
// are destroyed without running. An exception of a job goes to exceptions(), and the thread continues with
// the next job. Thread-safe; do not call join() on its threads.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <thread>

namespace weft::rpc {

class WEFT_EXPORT HandlerPool final : public Executor {
 private:
  struct Thread {
    std::thread::id id;
    std::thread thread;
    std::optional<OwnedThread> mark;  // changed only on the thread
  };

 public:
  explicit HandlerPool(std::size_t threads);  // starts them
  ~HandlerPool() override;
  void post(Callback job) override;
  std::shared_ptr<ExceptionSink> exceptions() const override { return exceptions_; }
  bool running_here();  // whether the calling thread is one of its threads
  void join();

  // A scope in which a job may block, for code that cannot suspend: a node of a backward that waits for a
  // collective. Meanwhile another thread runs the pool's jobs; the pool keeps that thread. If 256 jobs block,
  // or the system has no more threads, later jobs wait until one has ended. executor: the handlers of an
  // agent. If the calling thread is not one of its threads, the scope has no effect.
  class WEFT_EXPORT Blocking {
   public:
    explicit Blocking(Executor& executor);
    ~Blocking();
    Blocking(const Blocking&) = delete;
    Blocking& operator=(const Blocking&) = delete;

   private:
    HandlerPool* const pool_;
    Thread* thread_ = nullptr;  // the calling thread; null: no effect
  };

 private:
  void run(Thread& thread);
  Thread* find_here() WEFT_REQUIRES(mutex_);  // null: not one of its threads
  void add_thread() WEFT_REQUIRES(mutex_);
  bool may_start() const WEFT_REQUIRES(mutex_) { return !jobs_.empty() && busy_ < size_ + blocked_; }
  bool prepare_next() WEFT_REQUIRES(mutex_);  // true: a job may start, and there is a thread for it

  const std::shared_ptr<ExceptionSink> exceptions_ = std::make_shared<ExceptionSink>();
  const std::size_t size_;  // jobs that run at the same time, in addition to those that block
  mutable Mutex mutex_;
  // Notified without the lock, which the thread that wakes up needs first. The pool may end meanwhile.
  const std::shared_ptr<Condition> posted_ = std::make_shared<Condition>();
  std::deque<Callback> jobs_ WEFT_GUARDED_BY(mutex_);
  bool joining_ WEFT_GUARDED_BY(mutex_) = false;
  std::size_t busy_ WEFT_GUARDED_BY(mutex_) = 0, blocked_ WEFT_GUARDED_BY(mutex_) = 0;  // jobs
  std::size_t at_work_ WEFT_GUARDED_BY(mutex_) = 0;  // threads that have not ended
  std::deque<Thread> threads_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
