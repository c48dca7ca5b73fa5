#include <weft/dist_optim/serve/batch_queue.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace weft::dist_optim::detail {

using rpc::Clock;
using rpc::ErrorKind;

namespace {

std::uint64_t nanoseconds(Clock::duration time) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(time).count());
}

}  // namespace

BatchQueue::BatchQueue(std::string name, const BatchLimits& limits, std::size_t max_queued,
                       std::size_t threads, Run run)
    : name_(std::move(name)), limits_(limits), max_queued_(max_queued), run_(std::move(run)) {
  if (limits_.max_batch == 0 || max_queued_ == 0 || threads == 0)
    throw rpc::Error(ErrorKind::invalid_argument,
                     "batched service '" + name_ + "': max_batch " + std::to_string(limits_.max_batch) +
                         ", max_queued " + std::to_string(max_queued_) + ", threads " +
                         std::to_string(threads) + ", expected at least 1 of each");
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

BatchQueue::~BatchQueue() {
  BatchItems left;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = true;
    for (auto& item : items_) left.push_back(std::move(item));
    items_.clear();
  }
  changed_.notify_all();
  const auto error = std::make_exception_ptr(
      rpc::Error(ErrorKind::shut_down, "batched service '" + name_ + "': it ended before the request ran"));
  for (const auto& item : left) item->fail(error);
  for (std::thread& thread : threads_) thread.join();
}

void BatchQueue::add(std::unique_ptr<BatchItem> item) {
  {
    rpc::MutexLock lock(mutex_);
    if (items_.size() >= max_queued_) {
      ++stats_.shed;
      throw rpc::Error(ErrorKind::resource_exhausted,
                       "batched service '" + name_ + "': " + std::to_string(items_.size()) +
                           " requests wait, expected fewer than " + std::to_string(max_queued_) +
                           " (max_queued): try again later, or use another replica");
    }
    item->queued.arrived = Clock::now();
    if (item->call != nullptr) item->queued.deadline = item->call->deadline();
    const auto at =
        std::upper_bound(items_.begin(), items_.end(), item->queued.priority,
                         [](int priority, const auto& other) { return priority > other->queued.priority; });
    items_.insert(at, std::move(item));
    ++arrivals_;
  }
  changed_.notify_one();
}

BatchStats BatchQueue::stats() const {
  rpc::MutexLock lock(mutex_);
  BatchStats stats = stats_;
  stats.waiting = items_.size();
  return stats;
}

BatchQueue::Next BatchQueue::next(Clock::time_point now) {
  std::deque<QueuedRequest> queue;
  for (const auto& item : items_) {
    item->queued.is_cancelled = item->call != nullptr && item->call->cancelled();
    queue.push_back(item->queued);
  }
  const BatchPlan plan = plan_batch(queue, now, limits_);
  Next next{.wait_until = plan.wait_until};
  for (const std::size_t index : plan.dropped) next.dropped.push_back(std::move(items_[index]));
  for (const std::size_t index : plan.batch) next.batch.push_back(std::move(items_[index]));
  std::erase(items_, nullptr);
  return next;
}

void BatchQueue::count(const BatchItems& batch, Clock::time_point now) {
  ++stats_.batches;
  stats_.requests += batch.size();
  for (const auto& item : batch) stats_.queue_ns += nanoseconds(now - item->queued.arrived);
  const auto size = static_cast<std::size_t>(std::bit_width(batch.size() - 1));
  if (stats_.sizes.size() <= size) stats_.sizes.resize(size + 1);
  ++stats_.sizes[size];
}

void BatchQueue::work() {
  rpc::MutexLock lock(mutex_);
  while (!ended_) {
    const auto now = Clock::now();
    Next next = this->next(now);
    if (next.dropped.empty() && next.batch.empty()) {
      const auto is_changed = [this, seen = arrivals_]()
                                  WEFT_REQUIRES(mutex_) { return ended_ || arrivals_ != seen; };
      if (next.wait_until) {
        changed_.wait_until(lock, *next.wait_until, is_changed);
      } else {
        changed_.wait(lock, is_changed);
      }
      continue;
    }
    stats_.dropped += next.dropped.size();
    const bool runs = !next.batch.empty();
    if (runs) count(next.batch, now);
    rpc::MutexUnlock unlocked(lock, mutex_);
    for (const auto& item : next.dropped)
      item->fail(std::make_exception_ptr(
          rpc::Error(item->queued.is_cancelled ? ErrorKind::cancelled : ErrorKind::deadline_exceeded,
                     "batched service '" + name_ + "': the request ended while it waited for a batch")));
    if (!runs) continue;
    run_(std::move(next.batch), [&](std::size_t failed) {
      rpc::MutexLock counting(mutex_);
      stats_.failed += failed;
      stats_.compute_ns += nanoseconds(Clock::now() - now);
    });
  }
}

}  // namespace weft::dist_optim::detail
