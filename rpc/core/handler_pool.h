// HandlerPool: the threads on which handlers run, separate from the loops.
//
// Owned by an agent. Its threads count as owned: a blocking wait on them throws. join() runs the queued jobs,
// then ends the threads. Jobs that are posted later are destroyed without running. An exception of a job goes
// to exceptions(), and the thread continues with the next job. Thread-safe; do not call join() on its
// threads.
#pragma once

#include <weft/rpc/core/exception_sink.h>
#include <weft/rpc/core/executor.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT HandlerPool final : public Executor {
 public:
  explicit HandlerPool(std::size_t threads);
  ~HandlerPool() override;
  void post(Callback job) override;
  std::shared_ptr<ExceptionSink> exceptions() const override { return exceptions_; }
  bool running_here() const;  // on one of its threads
  void join();

 private:
  void run();

  const std::shared_ptr<ExceptionSink> exceptions_ = std::make_shared<ExceptionSink>();
  std::mutex mutex_;  // guards jobs_, joining_, at_work_
  std::condition_variable posted_;
  std::deque<Callback> jobs_;
  bool joining_ = false;
  std::size_t at_work_;  // threads that still run jobs
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> ids_;  // constant, whereas join() changes threads_
};

}  // namespace weft::rpc
