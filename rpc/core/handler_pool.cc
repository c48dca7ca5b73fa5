#include <weft/rpc/core/handler_pool.h>

#include <weft/rpc/core/result.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::size_t max_blocking = 256;  // jobs that block at the same time and are replaced by threads

}  // namespace

HandlerPool::HandlerPool(std::size_t threads) : size_(threads) {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < threads; ++i) add_thread();
}

HandlerPool::~HandlerPool() { join(); }

void HandlerPool::add_thread() {
  Thread& added = threads_.emplace_back();
  try {
    added.thread = std::thread([this, &added] { run(added); });
  } catch (...) {
    threads_.pop_back();
    throw;
  }
  ++at_work_;
  added.id = added.thread.get_id();
}

HandlerPool::Thread* HandlerPool::find_here() {
  const auto found = std::find_if(threads_.begin(), threads_.end(), [](const Thread& thread) {
    return thread.id == std::this_thread::get_id();
  });
  return found == threads_.end() ? nullptr : &*found;
}

void HandlerPool::post(Callback job) {
  const auto posted = posted_;
  {
    MutexLock lock(mutex_);
    if (at_work_ == 0) return;  // `job` is destroyed after the lock is released
    jobs_.push_back(std::move(job));
    if (!prepare_next()) return;
  }
  posted->notify_one();
}

bool HandlerPool::prepare_next() {
  if (!may_start()) return false;
  // During join(), one thread that does not block suffices. If no thread can be added, the job waits until
  // one that blocks has ended.
  if (at_work_ < (joining_ ? 1 : size_) + std::min(blocked_, max_blocking))
    (void)capture([this] {
      mutex_.assume_locked();
      add_thread();
    });
  return true;
}

bool HandlerPool::running_here() {
  MutexLock lock(mutex_);
  return find_here() != nullptr;
}

void HandlerPool::run(Thread& thread) {
  thread.mark.emplace();
  MutexLock lock(mutex_);
  while (true) {
    posted_->wait(lock, [this]() WEFT_REQUIRES(mutex_) { return joining_ || may_start(); });
    if (jobs_.empty()) break;
    Callback job = std::move(jobs_.front());
    jobs_.pop_front();
    ++busy_;
    lock.unlock();
    try {
      job();
    } catch (...) {
      exceptions_->take("a task of the handler threads", std::current_exception());
    }
    job = nullptr;
    lock.lock();
    --busy_;
  }
  thread.mark.reset();
  --at_work_;
}

HandlerPool::Blocking::Blocking(Executor& executor) : pool_(dynamic_cast<HandlerPool*>(&executor)) {
  if (pool_ == nullptr) return;
  MutexLock lock(pool_->mutex_);
  thread_ = pool_->find_here();
  if (thread_ == nullptr || !thread_->mark) {  // or within another scope
    thread_ = nullptr;
    return;
  }
  thread_->mark.reset();
  ++pool_->blocked_;
  if (pool_->prepare_next()) pool_->posted_->notify_one();
}

HandlerPool::Blocking::~Blocking() {
  if (thread_ == nullptr) return;
  MutexLock lock(pool_->mutex_);
  thread_->mark.emplace();
  --pool_->blocked_;
}

void HandlerPool::join() {
  {
    MutexLock lock(mutex_);
    joining_ = true;
    posted_->notify_all();
  }
  // A thread that has not ended may add another one.
  for (std::size_t i = 0;; ++i) {
    std::thread thread;
    {
      MutexLock lock(mutex_);
      if (i == threads_.size()) break;
      thread.swap(threads_[i].thread);
    }
    if (thread.joinable()) thread.join();
  }
}

}  // namespace weft::rpc
