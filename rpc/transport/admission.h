// Admission: limits the memory that all arriving messages of one agent use together
// (Limits::in_flight_total).
//
// A large frame is charged when its prefix announces its size, before memory is allocated for it. If the
// frame does not fit, its connection waits for room and reads nothing. After timeout() the connection skips
// the frame, and the request in it is refused, so that the following frames (a reply, a cancel, the end of
// the connection) are read. An eighth of the total is reserved for small frames, so that waiting large frames
// do not starve them. If no other large frame is charged, a large frame is always admitted, whatever its
// size. Owned by the agent and shared with its connections. Thread-safe.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/mutex.h>

#include <atomic>
#include <deque>
#include <memory>

namespace weft::rpc {

class WEFT_EXPORT Admission final : public std::enable_shared_from_this<Admission> {
 public:
  static constexpr std::uint64_t large = std::uint64_t{64} << 10;  // bytes; the minimum size of a large frame
  static constexpr auto default_timeout = std::chrono::seconds{1};

  // total: in bytes. timeout: how long a connection waits for room before it skips the frame.
  explicit Admission(std::uint64_t total, std::chrono::nanoseconds timeout = default_timeout)
      : total_(total), timeout_(timeout) {}

  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::uint64_t bytes() const { return bytes_; }  // currently charged

  // Charges a message of any size. Returns false, without charging, if there is no room.
  bool charge(std::uint64_t bytes);

  void charge_anyway(std::uint64_t bytes);  // for a message that must not be refused
  // Ends a charge of this size, and wakes connections that wait for room.
  void release(std::uint64_t bytes);

  // Charges like charge(). The charge is released with the last copy of the returned pointer. null: there is
  // no room.
  std::shared_ptr<void> admit(std::uint64_t bytes);
  // Posts `job` to `loop` once there may be room for `bytes`, which may be at once. The returned pointer is
  // the place in the queue. If the caller releases it before `job` runs, `job` does not run.
  std::shared_ptr<void> wait(std::uint64_t bytes, std::shared_ptr<Loop> loop, Callback job);

 private:
  struct Waiter {
    std::uint64_t bytes;
    std::shared_ptr<Loop> loop;
    Callback job;
  };
  bool fits(std::uint64_t bytes) const WEFT_REQUIRES(mutex_);  // whether a large frame fits
  void wake();

  const std::uint64_t total_;
  const std::chrono::nanoseconds timeout_;
  std::atomic<std::uint64_t> bytes_{0};
  // charge() increases it with mutex_ locked, so that it admits only one frame because no other is charged.
  std::atomic<std::uint64_t> large_frames_{0};
  std::atomic<bool> awaited_{false};  // waiting_ is not empty; written with mutex_ locked
  mutable Mutex mutex_;
  std::deque<std::weak_ptr<Waiter>> waiting_ WEFT_GUARDED_BY(mutex_);
  std::size_t prune_at_ WEFT_GUARDED_BY(mutex_) = 16;
};

}  // namespace weft::rpc
