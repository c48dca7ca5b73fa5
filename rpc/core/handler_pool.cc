#include <weft/rpc/core/handler_pool.h>

#include <weft/rpc/core/loop.h>

#include <algorithm>

namespace weft::rpc {

HandlerPool::HandlerPool(std::size_t threads) : at_work_(threads) {
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) ids_.push_back(threads_.emplace_back([this] { run(); }).get_id());
}

HandlerPool::~HandlerPool() { join(); }

void HandlerPool::post(Callback job) {
  MutexLock lock(mutex_);
  if (at_work_ == 0) return;  // `job` is destroyed after the lock is released
  jobs_.push_back(std::move(job));
  posted_.notify_one();
}

bool HandlerPool::running_here() const {
  return std::find(ids_.begin(), ids_.end(), std::this_thread::get_id()) != ids_.end();
}

void HandlerPool::run() {
  OwnedThread mark;
  MutexLock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return joining_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    Callback job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      job();
    } catch (...) {
      exceptions_->take("a task of the handler threads", std::current_exception());
    }
    job = nullptr;
    lock.lock();
  }
  --at_work_;
}

void HandlerPool::join() {
  {
    MutexLock lock(mutex_);
    joining_ = true;
    posted_.notify_all();
  }
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

}  // namespace weft::rpc
