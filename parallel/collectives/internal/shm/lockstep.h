// Lockstep: synchronizes ranks of one host that run the same steps, each of which may wait for the others.
//
// A rank publishes that it has reached the next step, and waits until other ranks have reached it. A rank
// that has waited for another rank sees all memory that the other rank wrote before it published. A waiter
// spins for a while, then stores the rank that it waits for, and blocks on a futex. The awaited rank wakes
// the waiter. Without blocked waiters, no system call is made. No wake-up is lost: a waiter stores the
// awaited rank and then checks the step once more; a rank publishes its step and then checks which ranks wait
// for it. All four accesses are sequentially consistent. Thread-safety: one thread at a time; any thread may
// call stop().
#pragma once

#include <weft/rpc/core/export.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::collectives {

// Each rank has one in its memory. Only that rank writes to it, except to the bell.
struct StepControl {
  alignas(128) std::atomic<std::uint64_t> step{0};
  alignas(128) std::atomic<std::uint32_t> awaited{
      0};                              // 1 + the rank for which this rank sleeps; 0: it does not sleep
  std::atomic<std::uint32_t> bell{0};  // the futex on which this rank sleeps; rung by the awaited rank
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

class WEFT_EXPORT Lockstep {
 public:
  // crowded: true if there are more ranks than cores, so that a rank that spins keeps another rank from
  // working.
  Lockstep(std::vector<StepControl*> ranks, int rank, bool crowded);

  // This rank, and the number of ranks that run these steps.
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(controls_.size()); }

  std::uint64_t publish();  // the next step; returns its number, from 1
  // The last step that the rank has published; 0: none. Any thread.
  std::uint64_t step_of(int rank) const {
    return controls_[static_cast<std::size_t>(rank)]->step.load(std::memory_order_acquire);
  }

  // brief: spins for about 50 µs in total; if crowded, yields a few times. endless: after that, sleeps until
  // all have published the step, or stop() is called.
  enum class Patience : std::uint8_t { brief, endless };
  // Whether all have published this step. False: a brief wait has ended, or stop() was called.
  bool await_all(std::uint64_t step, Patience patience);

  // Ends every wait of this rank, including later ones.
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
