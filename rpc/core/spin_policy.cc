#include <weft/rpc/core/spin_policy.h>

#include <algorithm>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

constexpr auto brief_absence = 5us;   // if a yield is shorter, no other thread ran
constexpr auto long_absence = 200us;  // caused by a thread that computes, or by a CPU quota
constexpr int pause_per_absence = 20;
constexpr std::uint32_t max_strikes = 3;
constexpr auto strikes_expire = 1s;
constexpr std::uint32_t free_misses = 8;

}  // namespace

SpinPolicy::SpinPolicy(std::optional<Duration> fixed, unsigned cpus)
    : bound_(fixed.value_or(cpus > 1 ? adaptive_bound : Duration{0})), adaptive_(!fixed) {}

SpinPolicy::Duration SpinPolicy::bound(Time now) {
  if (!adaptive_) return bound_;
  if (now < paused_until_) return Duration{0};
  if (skips_ == 0) return bound_;
  --skips_;
  return Duration{0};
}

bool SpinPolicy::yielded(Time now, Duration away) {
  if (away < brief_absence) return true;
  if (now - std::max(last_strike_, paused_until_) > strikes_expire) strikes_ = 0;
  last_strike_ = now;
  if (++strikes_ >= max_strikes || away >= long_absence) pause(now, away);
  return false;
}

bool SpinPolicy::looked(Time now, Duration gap) { return gap < long_absence || yielded(now, gap); }

void SpinPolicy::pause(Time now, Duration away) {
  // If polling fails soon after the last pause, the other thread still needs the core.
  const bool again = pause_.count() > 0 && now - paused_until_ < pause_;
  pause_ = std::min(std::max(again ? pause_ * 2 : first_pause, away * pause_per_absence), max_pause);
  paused_until_ = now + pause_;
  strikes_ = max_strikes - 1;  // one further absence starts the next pause
}

void SpinPolicy::found() { misses_ = skips_ = 0; }

void SpinPolicy::missed() {
  ++misses_;
  if (misses_ <= free_misses) return;
  skips_ = std::min(misses_ - free_misses, max_skips);
}

void SpinPolicy::slept(Duration duration) {
  if (duration < 2 * bound_) found();  // the duration includes the wake-up
}

}  // namespace weft::rpc
