#include <weft/rpc/agent/retry.h>

#include <algorithm>
#include <cmath>

namespace weft::rpc {

bool is_retriable(const std::exception_ptr& error, bool idempotent) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    if (failure.execution() != Execution::not_sent && !idempotent) return false;
    switch (failure.kind()) {
      case ErrorKind::unavailable:
      case ErrorKind::peer_lost:
      case ErrorKind::shut_down:
        return true;
      case ErrorKind::resource_exhausted:
        return failure.execution() == Execution::not_sent;  // shed: a handler's own is its answer
      default:
        return false;
    }
  } catch (...) {
    return false;
  }
}

std::optional<std::chrono::nanoseconds> wait_before_retry(const RetryPolicy& policy, std::uint16_t attempts,
                                                          std::uint64_t random) {
  if (attempts >= policy.attempts || attempts == 0) return std::nullopt;
  const double most = static_cast<double>(std::max(policy.most_wait.count(), std::int64_t{0}));
  const double due = std::min(static_cast<double>(std::max(policy.first_wait.count(), std::int64_t{0})) *
                                  std::pow(std::max(policy.growth, 1.0), static_cast<double>(attempts - 1)),
                              most);
  const double share = static_cast<double>(random >> 11) / static_cast<double>(std::uint64_t{1} << 53);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(due * (0.5 + share / 2)));
}

void RetryBudget::succeeded() {
  std::lock_guard lock(mutex_);
  tokens_ = std::min(tokens_ + options_.per_call, options_.most);
}

bool RetryBudget::take() {
  std::lock_guard lock(mutex_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace weft::rpc
