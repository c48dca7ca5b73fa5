// Admission: the memory that arriving messages of one agent may use together (Limits::in_flight_total).
//
// A large frame is charged when its prefix announces its size, before memory is allocated for it. Where it
// does not fit, its connection waits for room and reads nothing meanwhile; after timeout() the frame is
// skipped and its request refused, so that what follows it (a reply, a cancel, the connection's end) is read.
// An eighth of the total is for small frames alone: large ones that wait do not starve them. A large frame
// that no other large one precedes is always admitted, whatever its size. Owned by the agent; shared with its
// connections. Thread-safe.
#pragma once

#include <weft/rpc/core/loop.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

namespace weft::rpc {

class WEFT_EXPORT Admission final : public std::enable_shared_from_this<Admission> {
 public:
  static constexpr std::uint64_t large = std::uint64_t{64} << 10;  // bytes; smaller frames are not announced
  static constexpr auto default_timeout = std::chrono::seconds{1};

  explicit Admission(std::uint64_t total, std::chrono::nanoseconds timeout = default_timeout)
      : total_(total), timeout_(timeout) {}

  std::chrono::nanoseconds timeout() const { return timeout_; }
  std::uint64_t bytes() const { return bytes_; }  // charged now

  // By the size of a message, large or small. false: there is no room, and nothing was charged.
  bool charge(std::uint64_t bytes);
  void charge_anyway(std::uint64_t bytes);  // what may not be refused
  void release(std::uint64_t bytes);

  // charge(), released with the last copy of what is returned; null: there is no room.
  std::shared_ptr<void> admit(std::uint64_t bytes);
  // Posts `job` to `loop` once there may be room for `bytes`, unless the returned place in the queue
  // has gone by then. Posted at once where there is room already.
  std::shared_ptr<void> wait(std::uint64_t bytes, std::shared_ptr<Loop> loop, Callback job);

 private:
  struct Waiter {
    std::uint64_t bytes;
    std::shared_ptr<Loop> loop;
    Callback job;
  };
  bool fits(std::uint64_t bytes) const;  // a large frame; with mutex_
  void wake();

  const std::uint64_t total_;
  const std::chrono::nanoseconds timeout_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> large_frames_{0};  // grows under mutex_
  std::atomic<bool> awaited_{false};            // waiting_ is not empty; written under mutex_
  mutable std::mutex mutex_;                    // guards what follows
  std::deque<std::weak_ptr<Waiter>> waiting_;
  std::size_t prune_at_ = 16;
};

}  // namespace weft::rpc
