// Lockstep: ranks of one host that take the same steps, each of which may wait for the others.
//
// A rank publishes that it has come a step further, and waits until others have. What it wrote before it
// published is seen by whoever has waited for it. Who waits looks for a while, then sleeps, and says for
// whom: that rank wakes it, and else no system call is made. No wake-up is lost: a sleeper says for whom it
// waits, and looks once more; who publishes looks afterwards who waits for it. All four accesses are
// sequentially consistent. Thread-safety: one thread at a time; stop() on any.
#pragma once

#include <weft/rpc/core/export.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::collectives {

// In the memory of each rank, written by that rank but for the bell.
struct StepControl {
  alignas(128) std::atomic<std::uint64_t> step{0};
  alignas(128) std::atomic<std::uint32_t> awaited{0};  // rank + 1 for which it sleeps; 0: it does not sleep
  std::atomic<std::uint32_t> bell{0};                  // what it sleeps at: rung by the one awaited
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

class WEFT_EXPORT Lockstep {
 public:
  // crowded: there are more ranks than cores for them, so that a rank which looks keeps another from working.
  Lockstep(std::vector<StepControl*> ranks, int rank, bool crowded);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(controls_.size()); }

  std::uint64_t publish();  // the next step; its number, from 1
  std::uint64_t step_of(int rank) const {
    return controls_[static_cast<std::size_t>(rank)]->step.load(std::memory_order_acquire);
  }

  enum class Patience : std::uint8_t { brief, endless };
  // Whether all have published this step. False: a brief wait has ended, or stop() was called.
  bool await_all(std::uint64_t step, Patience patience);

  // Ends every wait of this rank, also those to come.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  using Clock = std::chrono::steady_clock;
  bool look(int rank, std::uint64_t step, std::optional<Clock::time_point>& until) const;
  void sleep(int rank, std::uint64_t step);
  StepControl& own() const { return *controls_[static_cast<std::size_t>(rank_)]; }

  const std::vector<StepControl*> controls_;
  const int rank_;
  const bool crowded_;
  std::atomic<bool> stopped_{false};
};

}  // namespace weft::collectives
