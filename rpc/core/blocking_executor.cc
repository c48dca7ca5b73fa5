#include <weft/rpc/core/blocking_executor.h>

namespace weft::rpc {

void BlockingExecutor::post(Callback job) {
  MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_.notify_one();
}

Callback BlockingExecutor::next() {
  MutexLock lock(mutex_);
  posted_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return !jobs_.empty(); });
  Callback job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

}  // namespace weft::rpc
