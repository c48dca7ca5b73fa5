// plan_batch(): which of the queued requests of a BatchedService run together, and when. A pure function.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/loop.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace weft::dist_optim {

// The limits of a batch.
struct BatchLimits {
  std::size_t max_batch = 64;  // requests
  // A request waits at most so long for other requests, unless a batch runs already.
  std::chrono::nanoseconds max_delay = std::chrono::milliseconds{2};
  // The number of requests times the length of the longest one, which is the size of the batch after padding.
  // A longer request runs alone. 0: no limit.
  std::size_t max_padded = 0;
};

// A request as the plan sees it.
struct QueuedRequest {
  int priority = 0;  // higher ones run first, however long the others have waited
  std::size_t length = 1;
  rpc::Clock::time_point arrived = {};
  std::optional<rpc::Clock::time_point> deadline = {};  // nullopt: none
  bool is_cancelled = false;
};

// Indices of requests, in the order of the queue.
struct BatchPlan {
  std::vector<std::size_t> dropped = {};  // cancelled, or their deadlines have passed: not to be computed
  std::vector<std::size_t> batch = {};    // to be run now
  // If there is no batch: when to plan again, unless requests arrive earlier. nullopt: not before.
  std::optional<rpc::Clock::time_point> wait_until = {};
};

// queue: by priority, and in the order of arrival within a priority. The batch has the first requests that
// the limits allow. It runs when the limits allow no further request, or when a request has waited for
// max_delay.
WEFT_EXPORT BatchPlan plan_batch(const std::deque<QueuedRequest>& queue, rpc::Clock::time_point now,
                                 const BatchLimits& limits);

}  // namespace weft::dist_optim
