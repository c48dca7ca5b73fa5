// HandlerPool: the threads on which handlers run, separate from the loops.
//
// Owned by an agent. Its threads are marked as OwnedThread, so a blocking wait on these threads throws.
// join() runs the queued jobs, then ends the threads. Jobs that are posted later are destroyed without
// running. An exception of a job goes to exceptions(), and the thread continues with the next job.
// Thread-safe; do not call join() on its threads.
#pragma once

#include <weft/rpc/core/exception_sink.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/mutex.h>

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT HandlerPool final : public Executor {
 public:
  explicit HandlerPool(std::size_t threads);
  ~HandlerPool() override;
  void post(Callback job) override;
  std::shared_ptr<ExceptionSink> exceptions() const override { return exceptions_; }
  bool running_here() const;  // whether the calling thread is one of its threads
  void join();

 private:
  void run();

  const std::shared_ptr<ExceptionSink> exceptions_ = std::make_shared<ExceptionSink>();
  Mutex mutex_;
  Condition posted_;
  std::deque<Callback> jobs_ WEFT_GUARDED_BY(mutex_);
  bool joining_ WEFT_GUARDED_BY(mutex_) = false;
  std::size_t at_work_ WEFT_GUARDED_BY(mutex_);  // threads that have not ended
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> ids_;  // constant, whereas join() changes threads_
};

}  // namespace weft::rpc
