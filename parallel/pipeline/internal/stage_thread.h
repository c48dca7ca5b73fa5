// StageThread: a thread that runs jobs one after the other. A job may block, because stages compute on such a
// thread.
//
// Thread-safe. end() and the destructor drop the jobs that have not begun, and wait for the running job,
// unless that job itself calls them.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <deque>
#include <memory>
#include <thread>

namespace weft::pipeline {

class StageThread {
 public:
  StageThread();
  ~StageThread();
  StageThread(const StageThread&) = delete;
  StageThread& operator=(const StageThread&) = delete;

  void post(rpc::Callback job);  // a job does not throw
  void end();                    // jobs that are posted later are dropped

 private:
  struct Queue {
    rpc::Mutex mutex;
    rpc::Condition changed;
    std::deque<rpc::Callback> jobs WEFT_GUARDED_BY(mutex);
    bool ends WEFT_GUARDED_BY(mutex) = false;
  };
  static void serve(Queue& queue);

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();  // shared with the thread
  std::thread thread_;
};

}  // namespace weft::pipeline
