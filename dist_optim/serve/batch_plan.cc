#include <weft/dist_optim/serve/batch_plan.h>

#include <algorithm>

namespace weft::dist_optim {

BatchPlan plan_batch(const std::deque<QueuedRequest>& queue, rpc::Clock::time_point now,
                     const BatchLimits& limits) {
  BatchPlan plan;
  std::size_t longest = 0;
  bool is_full = false;
  auto due = rpc::Clock::time_point::max(), next = due;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const QueuedRequest& request = queue[i];
    if (request.is_cancelled || (request.deadline && *request.deadline <= now)) {
      plan.dropped.push_back(i);
      continue;
    }
    due = std::min(due, rpc::later(request.arrived, limits.max_delay));
    if (request.deadline) next = std::min(next, *request.deadline);
    if (is_full) continue;
    const std::size_t padded = (plan.batch.size() + 1) * std::max(longest, request.length);
    is_full = !plan.batch.empty() && limits.max_padded != 0 && padded > limits.max_padded;
    if (is_full) continue;
    longest = std::max(longest, request.length);
    plan.batch.push_back(i);
    is_full = plan.batch.size() >= limits.max_batch;
  }
  if (is_full || due <= now || plan.batch.empty()) return plan;
  plan.batch.clear();
  plan.wait_until = std::min(due, next);
  return plan;
}

}  // namespace weft::dist_optim
