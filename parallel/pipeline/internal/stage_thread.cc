#include <weft/parallel/pipeline/internal/stage_thread.h>

#include <utility>

namespace weft::pipeline {

StageThread::StageThread() : thread_([queue = queue_] { serve(*queue); }) {}

StageThread::~StageThread() { end(); }

void StageThread::end() {
  std::deque<rpc::Callback> dropped;
  {
    rpc::MutexLock lock(queue_->mutex);
    queue_->ends = true;
    dropped.swap(queue_->jobs);
    queue_->changed.notify_one();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void StageThread::post(rpc::Callback job) {
  rpc::MutexLock lock(queue_->mutex);
  if (queue_->ends) return;
  queue_->jobs.push_back(std::move(job));
  queue_->changed.notify_one();
}

void StageThread::serve(Queue& queue) {
  rpc::MutexLock lock(queue.mutex);
  while (true) {
    queue.changed.wait(lock, [&]() WEFT_REQUIRES(queue.mutex) { return queue.ends || !queue.jobs.empty(); });
    if (queue.jobs.empty()) return;
    rpc::Callback job = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

}  // namespace weft::pipeline
