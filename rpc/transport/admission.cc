// Large frames wait in a first-in, first-out queue. wake() removes the frames that fit from its front, but
// charges nothing: a connection that it wakes calls charge() again, and may have to wait again.
//
// A waiter sets `awaited_` before it looks for room, and release() makes room before it reads `awaited_`.
// Therefore at least one of the two sees the other, and no room is missed.
#include <weft/rpc/transport/admission.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace weft::rpc {

bool Admission::fits(std::uint64_t bytes) const {
  if (large_frames_ == 0) return true;
  const std::uint64_t limit = total_ - total_ / 8, used = bytes_;
  return used <= limit && bytes <= limit - used;
}

bool Admission::charge(std::uint64_t bytes) {
  if (bytes < large) {
    for (std::uint64_t used = bytes_; used < total_;)
      if (bytes_.compare_exchange_weak(used, used + bytes)) return true;
    return false;
  }
  MutexLock lock(mutex_);
  if (!fits(bytes)) return false;
  ++large_frames_;
  bytes_ += bytes;
  return true;
}

void Admission::charge_anyway(std::uint64_t bytes) {
  if (bytes >= large) ++large_frames_;
  bytes_ += bytes;
}

void Admission::release(std::uint64_t bytes) {
  bytes_ -= bytes;
  if (bytes >= large) --large_frames_;
  if (awaited_) wake();
}

std::shared_ptr<void> Admission::admit(std::uint64_t bytes) {
  if (!charge(bytes)) return nullptr;
  return {this, [self = shared_from_this(), bytes](void*) { self->release(bytes); }};
}

std::shared_ptr<void> Admission::wait(std::uint64_t bytes, std::shared_ptr<Loop> loop, Callback job) {
  auto waiter = std::make_shared<Waiter>(Waiter{bytes, std::move(loop), std::move(job)});
  {
    MutexLock lock(mutex_);
    if (waiting_.size() >= prune_at_) {  // amortized: pruning at each call would cost O(n^2)
      std::erase_if(waiting_, [](const auto& old) { return old.expired(); });
      prune_at_ = std::max<std::size_t>(16, 2 * waiting_.size());
    }
    waiting_.push_back(waiter);
    awaited_ = true;
  }
  wake();
  return waiter;
}

// Wakes the waiters in the order in which they arrived, as long as their frames fit together.
void Admission::wake() {
  std::vector<std::shared_ptr<Waiter>> woken;
  {
    MutexLock lock(mutex_);
    std::uint64_t planned = 0;
    while (!waiting_.empty()) {
      auto waiter = waiting_.front().lock();
      if (waiter != nullptr && !fits(planned + waiter->bytes)) break;
      waiting_.pop_front();
      if (waiter == nullptr) continue;
      planned += waiter->bytes;
      woken.push_back(std::move(waiter));
    }
    awaited_ = !waiting_.empty();
  }
  for (const auto& waiter : woken) {
    // The pointer is weak: a connection that has closed in the meantime is not woken.
    waiter->loop->post([weak = std::weak_ptr(waiter)] {
      if (const auto still = weak.lock()) std::exchange(still->job, {})();
    });
  }
}

}  // namespace weft::rpc
