#include <weft/rpc/testing/simulation/sim_loop.h>

#include <weft/rpc/testing/simulation/sim_world.h>

#include <algorithm>

namespace weft::test {

using rpc::Callback;
using rpc::Clock;

// --- SimRunner ---

bool SimRunner::current() const { return process_ != nullptr && world().running() == this; }
SimWorld& SimRunner::world() const { return process_->world(); }
Clock::time_point SimRunner::time() const { return process_ != nullptr ? world().now() : end_; }

Clock::time_point SimRunner::arrival() {
  Clock::time_point at = time();
  // If another thread or the program posts, this runner may have to wake up first.
  if (!current()) at += world().order().up_to(world().pace().longest_wakeup);
  last_arrival_ = std::max(last_arrival_, at);
  return last_arrival_;
}

// --- SimLoop ---

void SimLoop::post(Callback job) {
  if (!runs()) return;
  jobs_.push_back({arrival(), std::move(job)});
}

rpc::Loop::TimerId SimLoop::schedule(Clock::time_point when, Callback job) {
  const TimerId id = ++last_timer_;
  if (!runs()) return id;
  const TimerKey key{when, world().order().next(), id};
  timers_.emplace(key, std::move(job));
  timer_keys_.emplace(id, key);
  return id;
}

void SimLoop::cancel(TimerId timer) {
  const auto found = timer_keys_.find(timer);
  if (found == timer_keys_.end()) return;
  const auto node = timers_.extract(found->second);  // its job is destroyed last: it may call this object
  timer_keys_.erase(found);
}

Clock::time_point SimLoop::due() const {
  Clock::time_point first = Clock::time_point::max();
  if (!jobs_.empty()) first = jobs_.front().when;
  if (!timers_.empty()) first = std::min(first, std::get<0>(timers_.begin()->first));
  return first;
}

Callback SimLoop::take() {
  const Clock::time_point now = time();
  const bool posted = !jobs_.empty() && jobs_.front().when <= now;
  const bool timed = !timers_.empty() && std::get<0>(timers_.begin()->first) <= now;
  if (timed && (!posted || world().order().coin())) {
    auto node = timers_.extract(timers_.begin());
    timer_keys_.erase(std::get<2>(node.key()));
    return std::move(node.mapped());
  }
  Callback job = std::move(jobs_.front().job);
  jobs_.pop_front();
  return job;
}

std::vector<Callback> SimLoop::take_all() {
  std::vector<Callback> all;
  for (Posted& posted : std::exchange(jobs_, {})) all.push_back(std::move(posted.job));
  for (auto& [key, job] : std::exchange(timers_, {})) all.push_back(std::move(job));
  timer_keys_.clear();
  return all;
}

// --- SimExecutor ---

void SimExecutor::post(Callback job) {
  if (!runs()) return;
  jobs_.push_back({arrival(), std::move(job)});
}

Clock::time_point SimExecutor::due() const {
  return jobs_.empty() ? Clock::time_point::max() : jobs_.front().when;  // in the order of posting
}

Callback SimExecutor::take() {
  const auto first_late = std::partition_point(jobs_.begin(), jobs_.end(),
                                               [now = time()](const Posted& job) { return job.when <= now; });
  const auto chosen = jobs_.begin() + static_cast<std::ptrdiff_t>(world().order().below(
                                          static_cast<std::uint64_t>(first_late - jobs_.begin())));
  Callback job = std::move(chosen->job);
  jobs_.erase(chosen);
  return job;
}

std::vector<Callback> SimExecutor::take_all() {
  std::vector<Callback> all;
  for (Posted& posted : std::exchange(jobs_, {})) all.push_back(std::move(posted.job));
  return all;
}

}  // namespace weft::test
