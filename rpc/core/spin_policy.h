// SpinPolicy: decides whether an event loop without work polls for a while or blocks at once.
//
// A wake-up costs tens of microseconds. A loop that expects its next event within that time should poll, if
// no other thread needs the core. The kernel does not tell a thread whether another thread needs its core.
// The loop finds out by yielding while it polls: if no thread was waiting, the yield returns within a
// microsecond; a longer yield shows that another thread ran. An exhausted CPU quota suspends the thread
// between yields: the loop detects this as a gap between two readings of the clock.
//
//   bound()     how long to poll now. 0: block at once.
//   yielded()   a yield during the polling has returned. false: stop polling.
//   looked()    the loop has read the clock while it polled in vain. false: stop polling.
//   found()     an event arrived while the loop polled.
//   missed()    the bound passed without an event.
//   slept()     the loop blocked for `duration`, until the next event.
//
// Two rules bound the cost. First, the loop stops polling for a while (a pause) if another thread has run
// instead of the loop for at least 0.2 ms. Three shorter absences also start a pause, if each follows the
// previous one within a second. The pause is 5 ms, or 20 times the time that the other thread ran, if that is
// longer. If another thread needs the core again soon after a pause, the next pause is twice as long, up to
// 10 s. Second, after more than eight consecutive polls without an event, the loop waits without polling:
// once after the ninth poll, twice after the tenth, and so on, up to 255 times. So sparse events cost little.
// If an event arrives soon after the loop has blocked, the loop polls again.
//
// A value, used by one thread. It does not read a clock: its caller passes the time.
#pragma once

#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <optional>

namespace weft::rpc {

class WEFT_EXPORT SpinPolicy {
 public:
  // The types of the loops' clock.
  using Duration = std::chrono::nanoseconds;
  using Time = Clock::time_point;

  // The maximum polling time of an adaptive loop, and the limits of the pauses and skips.
  static constexpr Duration adaptive_bound = std::chrono::microseconds{50};
  static constexpr Duration first_pause = std::chrono::milliseconds{5};
  static constexpr Duration max_pause = std::chrono::seconds{10};
  static constexpr std::uint32_t max_skips = 255;

  // fixed: always poll for this time, and never yield. nullopt: adaptive; never poll on a machine with one
  // CPU.
  explicit SpinPolicy(std::optional<Duration> fixed, unsigned cpus = 2);

  // The loop calls bound() before it polls, and reports the result.
  bool spins() const { return bound_.count() > 0; }  // constant
  bool yields() const { return adaptive_; }          // true: the loop yields while it polls
  Duration bound(Time now);
  Time paused_until() const { return paused_until_; }
  bool yielded(Time now, Duration away);
  // gap: the time since the last reading of the clock, or since the last yield.
  bool looked(Time now, Duration gap);
  void found();
  void missed();
  void slept(Duration duration);

 private:
  void pause(Time now, Duration away);

  Duration bound_;
  bool adaptive_;
  Time paused_until_{};
  Duration pause_{0};  // the duration of the last pause
  Time last_strike_{};
  std::uint32_t strikes_ = 0;  // how often another thread needed the core recently
  std::uint32_t misses_ = 0;   // consecutive polls without an event
  std::uint32_t skips_ = 0;    // waits without polling that remain
};

}  // namespace weft::rpc
