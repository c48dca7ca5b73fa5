#include <weft/rpc/core/blocking_executor.h>

namespace weft::rpc {

void BlockingExecutor::post(Callback job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  posted_.notify_one();
}

Callback BlockingExecutor::next() {
  std::unique_lock lock(mutex_);
  posted_.wait(lock, [this] { return !jobs_.empty(); });
  Callback job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

}  // namespace weft::rpc
