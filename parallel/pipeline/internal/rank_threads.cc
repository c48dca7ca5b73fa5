#include <weft/parallel/pipeline/internal/rank_threads.h>

namespace weft::pipeline {

RankThreads::RankThreads(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
}

RankThreads::~RankThreads() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::run(const std::function<void(int)>& f) {
  std::unique_lock lock(mutex_);
  f_ = &f;
  running_ = static_cast<int>(threads_.size());
  ++runs_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return running_ == 0; });
  f_ = nullptr;
}

void RankThreads::serve(int rank) {
  std::size_t done = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || runs_ != done; });
    if (ends_) return;
    done = runs_;
    const auto& f = *f_;
    lock.unlock();
    f(rank);
    lock.lock();
    if (--running_ == 0) changed_.notify_all();
  }
}

}  // namespace weft::pipeline
