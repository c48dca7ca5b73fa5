// LaunchOrder: the one order in which work of all communicators is put on a device, and what is in flight
// there.
//
//   LaunchTurn turn = order->reserve();  // a place in the order, from now on
//   turn.wait(deadline);                 // until all places before it are given up
//   ...                                  // the turn of the device, until `turn` ends
//
// Two kernels of NCCL that ranks launch in different orders may wait for each other for ever, also if they
// belong to different communicators. So there is one LaunchOrder for each device, shared by its
// communicators. Across processes the order is that of the program, if all ranks start in the same order, or
// that of Group::launch. While work is in flight nothing may be allocated or freed on the device:
// when_quiet() waits for that. A turn that ends unused is skipped. Thread-safe; a turn belongs to one thread
// at a time, and keeps its order.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace weft::collectives::nccl {

class LaunchOrder;

class WEFT_EXPORT LaunchTurn {
 public:
  LaunchTurn() = default;  // none
  LaunchTurn(LaunchTurn&& other) noexcept = default;
  LaunchTurn& operator=(LaunchTurn&& other) noexcept;
  ~LaunchTurn() { end(); }

  explicit operator bool() const { return order_ != nullptr; }
  // Blocks; deadline_exceeded. It does not end the turns of others that hold the device.
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
  // The place behind all those that are reserved. Does not block.
  LaunchTurn reserve();

  // Work that was launched, within its turn. It ends later and on any thread.
  void launched();
  void ended();
  std::size_t in_flight() const;

  // Runs the job as soon as nothing is in flight and no turn is active, here or on the thread that ends the
  // last one; meanwhile no turn starts.
  void when_quiet(rpc::Callback job);
  // The same now, or not at all (false). Exceptions of f are passed on.
  template <class F>
  bool if_quiet(F&& f) {
    if (!begin_quiet()) return false;
    const struct End {
      LaunchOrder& order;
      ~End() { order.end_quiet(); }
    } end{*this};
    std::forward<F>(f)();
    return true;
  }

 private:
  friend class LaunchTurn;
  bool quiet() const WEFT_REQUIRES(mutex_) { return in_flight_ == 0 && places_.empty() && !busy_; }
  bool begin_quiet();
  void end_quiet();
  void run_quiet_jobs(rpc::MutexLock& lock) WEFT_REQUIRES(mutex_);
  void leave(std::uint64_t place);

  mutable rpc::Mutex mutex_;
  rpc::Condition changed_;
  std::set<std::uint64_t> places_ WEFT_GUARDED_BY(mutex_);  // reserved and not given up
  std::uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  std::size_t in_flight_ WEFT_GUARDED_BY(mutex_) = 0;
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;  // with a job that waited for quiet
  std::vector<rpc::Callback> quiet_jobs_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collectives::nccl
