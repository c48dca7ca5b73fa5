// SpinPolicy: decides whether an event loop that has run out of work polls for a while or sleeps at once.
//
// A wake-up costs tens of microseconds, so a loop that expects its next event within that time does better to
// poll, provided that no other thread wants the core. The kernel does not tell a thread whether its core is
// wanted. The loop finds out by yielding while it polls: a yield that no thread was waiting for returns
// within a microsecond, and one that takes longer shows that another thread ran. A CPU quota that was used up
// suspends the thread between yields: the loop sees it as a gap between two looks at the clock.
//
//   bound()     how long to poll now. 0: sleep at once.
//   yielded()   a yield during the polling has returned. false: stop polling.
//   looked()    the loop has looked at the clock while it polled in vain. false: stop polling.
//   found()     an event arrived while the loop polled.
//   missed()    the bound passed without an event.
//   slept()     the loop slept, and how long it took until the next event.
//
// Two rules bound the cost. First, if the core was wanted three times within a second, or once for long, the
// loop does not poll for a pause. The pause is 5 ms or 20 times the absence, and doubles up to 10 s while the
// trials after it fail. Second, from the ninth poll in a row that misses on, more and more sleeps, up to 255,
// follow each poll directly, so that sparse events cost little. An event that comes soon after the loop slept
// ends this.
//
// A value, used by one thread. It reads no clock, so tests give it the time.
#pragma once

#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <optional>

namespace weft::rpc {

class WEFT_EXPORT SpinPolicy {
 public:
  // Of the clock of loops.
  using Duration = std::chrono::nanoseconds;
  using Time = Clock::time_point;

  // How long an adaptive loop polls at most, and the bounds of what it skips after its core was wanted.
  static constexpr Duration adaptive_bound = std::chrono::microseconds{50};
  static constexpr Duration first_pause = std::chrono::milliseconds{5};
  static constexpr Duration max_pause = std::chrono::seconds{10};
  static constexpr std::uint32_t max_skips = 255;

  // fixed: always poll for so long, and never yield. nullopt: adapt; on a machine with one CPU never poll.
  explicit SpinPolicy(std::optional<Duration> fixed, unsigned cpus = 2);

  // The loop asks before it polls, and reports what came of it.
  bool spins() const { return bound_.count() > 0; }  // at any time
  bool yields() const { return adaptive_; }          // adapts
  Duration bound(Time now);
  Time paused_until() const { return paused_until_; }
  bool yielded(Time now, Duration away);
  bool looked(Time now, Duration gap);  // since the last look or yield
  void found();
  void missed();
  void slept(Duration duration);

 private:
  void pause(Time now, Duration away);

  Duration bound_;
  bool adaptive_;
  Time paused_until_{};
  Duration pause_{0};  // the last one
  Time last_strike_{};
  std::uint32_t strikes_ = 0;  // how often the core was wanted lately
  std::uint32_t misses_ = 0;   // in a row
  std::uint32_t skips_ = 0;    // sleeps without polling that are still to come
};

// Online CPUs of the machine, whichever of them the calling thread may use: a peer may run on the others. If
// both share one CPU, the yields show it.
WEFT_EXPORT unsigned online_cpus();

}  // namespace weft::rpc
