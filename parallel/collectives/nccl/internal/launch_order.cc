#include <weft/parallel/collectives/nccl/internal/launch_order.h>

#include <weft/rpc/core/error.h>

namespace weft::collectives::nccl {

LaunchTurn& LaunchTurn::operator=(LaunchTurn&& other) noexcept {
  end();
  order_ = std::move(other.order_);
  place_ = other.place_;
  return *this;
}

void LaunchTurn::wait(rpc::Clock::time_point deadline) {
  rpc::MutexLock lock(order_->mutex_);
  const auto mine = [&]() WEFT_REQUIRES(order_->mutex_) { return *order_->places_.begin() == place_; };
  if (deadline == rpc::Clock::time_point::max()) return order_->changed_.wait(lock, mine);
  if (!order_->changed_.wait_until(lock, deadline, mine))
    throw rpc::Error(rpc::ErrorKind::deadline_exceeded,
                     "NCCL: an earlier operation on this device was not launched in time");
}

bool LaunchTurn::is_mine() const {
  rpc::MutexLock lock(order_->mutex_);
  return *order_->places_.begin() == place_;
}

void LaunchTurn::end() {
  if (const auto order = std::exchange(order_, nullptr)) order->leave(place_);
}

LaunchTurn LaunchOrder::reserve() {
  rpc::MutexLock lock(mutex_);
  places_.insert(next_);
  return {shared_from_this(), next_++};
}

void LaunchOrder::leave(std::uint64_t place) {
  rpc::MutexLock lock(mutex_);
  places_.erase(place);
  changed_.notify_all();
}

}  // namespace weft::collectives::nccl
