// HandlerPool: the threads on which handlers run, away from the loops.
//
// Owned by an agent. Its threads count as owned: a blocking wait on them is an error. join() runs what is
// queued, then ends the threads; jobs posted later are dropped: destroyed by post(), unrun. An exception of a
// job goes to exceptions(), and its thread takes the next job. Thread-safe; join() not on its threads.
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
  std::size_t at_work_;  // threads that still take jobs
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> ids_;  // fixed once made: threads_ changes in join()
};

}  // namespace weft::rpc
