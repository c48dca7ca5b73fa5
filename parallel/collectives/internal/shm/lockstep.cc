#include <weft/parallel/collectives/internal/shm/lockstep.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace weft::collectives {
namespace {

// How long a rank spins before it sleeps: a few times the cost of a wake-up. If another thread needs the
// core, it yields instead, this number of times.
constexpr std::chrono::microseconds looking{50};
constexpr int yields = 8;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Not FUTEX_WAIT_PRIVATE, because the ranks are in several processes.
void sleep_at(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, nullptr, nullptr, 0);
}
void wake_at(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ring(StepControl& rank) {
  rank.bell.fetch_add(1);
  wake_at(rank.bell);
}

}  // namespace

Lockstep::Lockstep(std::vector<StepControl*> ranks, int rank, bool crowded)
    : controls_(std::move(ranks)), rank_(rank), crowded_(crowded) {}

std::uint64_t Lockstep::publish() {
  const std::uint64_t step = own().step.load(std::memory_order_relaxed) + 1;
  own().step.store(step);
  for (StepControl* other : controls_)
    if (other->awaited.load() == static_cast<std::uint32_t>(rank_) + 1) ring(*other);
  return step;
}

bool Lockstep::await_all(std::uint64_t step, Patience patience) {
  std::optional<Clock::time_point> until;  // common to the waits for all ranks
  for (int rank = 0; rank < ranks(); ++rank) {
    while (!look(rank, step, until)) {
      if (stopped() || patience == Patience::brief) return false;
      sleep(rank, step);
    }
  }
  return true;
}

bool Lockstep::look(int rank, std::uint64_t step, std::optional<Clock::time_point>& until) const {
  if (step_of(rank) >= step) return true;
  if (crowded_) {
    for (int i = 0; i < yields; ++i) {
      ::sched_yield();
      if (step_of(rank) >= step) return true;
      if (stopped()) return false;
    }
    return false;
  }
  while (!stopped()) {
    for (int i = 0; i < 32; ++i) {
      if (step_of(rank) >= step) return true;
      relax();
    }
    const auto now = Clock::now();
    if (!until) until = now + looking;
    if (now >= *until) break;
  }
  return false;
}

void Lockstep::sleep(int rank, std::uint64_t step) {
  StepControl& other = *controls_[static_cast<std::size_t>(rank)];
  own().awaited.store(static_cast<std::uint32_t>(rank) + 1);
  while (true) {
    const std::uint32_t bell = own().bell.load();
    if (other.step.load() >= step || stopped_.load()) break;
    sleep_at(own().bell, bell);
  }
  own().awaited.store(0);
}

void Lockstep::stop() {
  stopped_.store(true);
  ring(own());
}

}  // namespace weft::collectives
