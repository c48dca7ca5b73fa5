// LaunchOrder: the order in which the work of all communicators is put on a device.
//
//   LaunchTurn turn = order->reserve();  // a place in the order, from now on
//   turn.wait(deadline);                 // until all places before it are given up
//   ...                                  // the turn of the device, until `turn` ends
//
// Two kernels of NCCL that ranks launch in different orders may wait for each other for ever, even if they
// belong to different communicators. So there is one LaunchOrder for each device, shared by the device's
// communicators. Across processes, either the program starts its collectives in the same order on all ranks,
// or Group::launch orders them. A turn that ends unused is skipped. Thread-safe; a turn belongs to one thread
// at a time, and keeps the LaunchOrder alive.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <cstdint>
#include <memory>
#include <set>

namespace weft::collectives::nccl {

class LaunchOrder;

class WEFT_EXPORT LaunchTurn {
 public:
  LaunchTurn() = default;  // none
  LaunchTurn(LaunchTurn&& other) noexcept = default;
  LaunchTurn& operator=(LaunchTurn&& other) noexcept;
  ~LaunchTurn() { end(); }

  explicit operator bool() const { return order_ != nullptr; }
  // Blocks until the turn begins; deadline_exceeded if it does not begin before the deadline. A turn that has
  // begun lasts until end().
  void wait(rpc::Clock::time_point deadline);

  bool is_mine() const;  // whether wait() would return at once
  void end();

 private:
  friend class LaunchOrder;
  LaunchTurn(std::shared_ptr<LaunchOrder> order, std::uint64_t place)
      : order_(std::move(order)), place_(place) {}
  std::shared_ptr<LaunchOrder> order_;
  std::uint64_t place_ = 0;
};

class WEFT_EXPORT LaunchOrder final : public std::enable_shared_from_this<LaunchOrder> {
 public:
  // Reserves the place behind all reserved places. Does not block.
  LaunchTurn reserve();

 private:
  friend class LaunchTurn;
  void leave(std::uint64_t place);

  rpc::Mutex mutex_;
  rpc::Condition changed_;
  std::set<std::uint64_t> places_ WEFT_GUARDED_BY(mutex_);  // reserved and not given up
  std::uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::collectives::nccl
