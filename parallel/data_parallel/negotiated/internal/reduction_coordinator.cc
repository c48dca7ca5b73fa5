#include <weft/parallel/data_parallel/negotiated/internal/reduction_coordinator.h>

#include <weft/rpc/core/duration_text.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {

ReductionCoordinator::ReductionCoordinator(std::shared_ptr<rpc::Loop> loop, int ranks,
                                           const NegotiationOptions& options, std::uint64_t max_fused_request,
                                           Deliver deliver, Log log)
    : loop_(std::move(loop)),
      ranks_(ranks),
      options_(options),
      max_fused_request_(max_fused_request),
      deliver_(std::move(deliver)),
      log_(std::move(log)),
      planner_(ranks),
      fusion_(options.fusion) {
  if (!options_.tuning) return;
  tuner_.emplace(*options_.tuning);
  fusion_ = tuner_->settings();
}

void ReductionCoordinator::take(int from, NegotiationRequests message) {
  if (over_) return;
  for (ReductionRequest& request : message.requests) planner_.add(from, std::move(request), loop_->now());
  if (message.joined) planner_.join(from);
  if (message.closed) planner_.close(from);
  watch_stalls();
  planner_.has_ready() ? plan() : end_closed_ranks();
}

void ReductionCoordinator::plan() {
  const bool idle = in_flight_ == 0 && !planner_.has_waiting();
  if (idle || planner_.ready_bytes() >= fusion_.bytes || fusion_.cycle.count() == 0) return send_plan();
  if (std::exchange(planning_, true)) return;
  after(fusion_.cycle, [](ReductionCoordinator& self) {
    self.planning_ = false;
    self.send_plan();
  });
}

void ReductionCoordinator::send_plan() {
  NegotiationPlan plan{planner_.plan(fusion_.bytes, max_fused_request_), false, fusion_.bytes,
                       fusion_.cycle.count()};
  if (auto end = planner_.take_join_end()) {
    plan.joined = end->last;
    plan.join_error = std::move(end->error);
  } else if (plan.launches.empty()) {
    return;
  }
  for (const ReductionLaunch& launch : plan.launches) in_flight_ += launch.error.empty() ? 1 : 0;
  for (int to = 1; to < ranks_; ++to)
    if (!ended_.contains(to)) deliver_(to, plan);
  deliver_(0, plan);
  end_closed_ranks();
}

// Sends the last plan to each closed rank that has no request left to be planned. If rank 0 itself is closed,
// no rank has such a request.
void ReductionCoordinator::end_closed_ranks() {
  for (int to = 1; to < ranks_; ++to)
    if (planner_.is_closed(to) && !planner_.has_requests_of(to) && ended_.insert(to).second)
      deliver_(to, last_plan());
}

NegotiationPlan ReductionCoordinator::last_plan() const {
  return {{}, true, fusion_.bytes, fusion_.cycle.count()};
}

template <class F>
void ReductionCoordinator::after(std::chrono::nanoseconds wait, F f) {
  loop_->schedule(rpc::later(loop_->now(), wait), [weak = weak_from_this(), f] {
    if (const auto self = weak.lock(); self != nullptr && !self->over_) f(*self);
  });
}

// --- Stalls ---

// Keeps one timer while some request waits for ranks.
void ReductionCoordinator::watch_stalls() {
  const auto oldest = planner_.oldest();
  const bool warns = options_.stall_warning.count() > 0, fails = options_.stall_limit.count() > 0;
  if (watching_ || !oldest || (!warns && !fails)) return;
  // A warning is repeated each time that the oldest request has waited for `stall_warning` more.
  const auto now = loop_->now();
  auto next = ReductionPlanner::Time::max();
  if (warns)
    next = rpc::later(*oldest, options_.stall_warning * ((now - *oldest) / options_.stall_warning + 1));
  if (fails) next = std::min(next, rpc::later(*oldest, options_.stall_limit));
  watching_ = true;
  after(next - now, [](ReductionCoordinator& self) {
    self.watching_ = false;
    self.look_at_stalls();
  });
}

void ReductionCoordinator::look_at_stalls() {
  const auto now = loop_->now();
  if (const auto texts = overdue(now, options_.stall_limit); !texts.empty()) {
    NegotiationPlan plan = last_plan();
    plan.stalled = texts.front();
    for (int to = 1; to < ranks_; ++to)
      if (ended_.insert(to).second) deliver_(to, plan);
    return deliver_(0, plan);
  }
  for (const std::string& text : overdue(now, options_.stall_warning)) log_(rpc::LogLevel::warning, text);
  watch_stalls();
}

std::vector<std::string> ReductionCoordinator::overdue(rpc::Clock::time_point now,
                                                       std::chrono::nanoseconds limit) const {
  std::vector<std::string> texts;
  if (limit.count() == 0) return texts;
  for (const auto& stall : planner_.stalled(now, limit))
    texts.push_back("all_reduce of '" + stall.name + "' has waited for " + rpc::seconds_text(limit) + ": " +
                    stall.text());
  return texts;
}

// --- Tuning ---

void ReductionCoordinator::completed(std::size_t launches, std::uint64_t bytes) {
  in_flight_ -= launches;
  if (over_) return;
  if (tuner_) tune(bytes);
  if (planner_.has_ready()) plan();
}

// The first launch that completes after the end of a window closes it.
void ReductionCoordinator::tune(std::uint64_t bytes) {
  const auto now = loop_->now();
  if (!window_began_) {
    window_began_ = now;
    return;
  }
  window_bytes_ += bytes;
  if (now - *window_began_ < options_.tuning_window) return;
  tuner_->add(std::exchange(window_bytes_, 0), std::chrono::duration<double>(now - *window_began_).count());
  window_began_ = now;
  fusion_ = tuner_->settings();
  if (!tuner_->done()) return;
  log_(rpc::LogLevel::info, "fusion tuned to " + std::to_string(fusion_.bytes) + " bytes and a cycle of " +
                                std::to_string(fusion_.cycle.count() / 1000) + " us\n" + tuner_->csv());
  tuner_.reset();
}

}  // namespace weft::data_parallel
