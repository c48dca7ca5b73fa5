// LaunchOrder: the order in which the work of all communicators is put on a device, and the number of
// launches in flight there.
//
//   LaunchTurn turn = order->reserve();  // a place in the order, from now on
//   turn.wait(deadline);                 // until all places before it are given up
//   ...                                  // the turn of the device, until `turn` ends
//
// Two kernels of NCCL that ranks launch in different orders may wait for each other for ever, even if they
// belong to different communicators. So there is one LaunchOrder for each device, shared by the device's
// communicators. Across processes, either the program starts its collectives in the same order on all ranks,
// or Group::launch orders them. While work is in flight, nothing may be allocated or freed on the device:
// when_quiet() waits until that work has ended. A turn that ends unused is skipped. Thread-safe; a turn
// belongs to one thread at a time, and keeps the LaunchOrder alive.
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

  // Call launched() within the turn, after the work was launched. Call ended() on any thread, when that work
  // has ended.
  void launched();
  void ended();
  std::size_t in_flight() const;

  // Runs the job as soon as nothing is in flight and no turn is active: on this thread, or on the thread that
  // ends the last work or turn. Meanwhile no turn starts.
  void when_quiet(rpc::Callback job);
  // Runs f if the device is quiet now; otherwise returns false. Throws the exceptions of f.
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
  bool busy_ WEFT_GUARDED_BY(mutex_) = false;  // a job or f of if_quiet() runs
  std::vector<rpc::Callback> quiet_jobs_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collectives::nccl
