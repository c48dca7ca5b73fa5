#include <weft/rpc/call/retry.h>

#include <weft/rpc/core/split_mix.h>

#include <algorithm>
#include <cmath>

namespace weft::rpc {

bool is_retriable(const std::exception_ptr& error, bool idempotent) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    const bool not_sent = failure.execution() == Execution::not_sent;
    const bool of_handler = !not_sent && dynamic_cast<const RemoteError*>(&failure) != nullptr;
    if (of_handler || (!not_sent && !idempotent)) return false;
    const ErrorKind kind = failure.kind();
    if (kind == ErrorKind::resource_exhausted)
      return not_sent;  // the peer refused the call because of a limit
    return kind == ErrorKind::unavailable || kind == ErrorKind::peer_lost || kind == ErrorKind::shut_down;
  } catch (...) {
    return false;
  }
}

std::uint64_t jitter(std::uint64_t incarnation, std::uint64_t salt) {
  return split_mix((incarnation ^ split_mix(salt + split_mix_step)) + split_mix_step);
}

std::chrono::nanoseconds backoff_wait(const Backoff& backoff, std::uint32_t failures, std::uint64_t random) {
  const auto positive = [](std::chrono::nanoseconds wait) {
    return static_cast<double>(std::max(wait.count(), std::int64_t{0}));
  };
  const double due = std::min(
      positive(backoff.first) * std::pow(std::max(backoff.growth, 1.0), static_cast<double>(failures) - 1),
      positive(backoff.max));
  const double share = static_cast<double>(random >> 11) / static_cast<double>(std::uint64_t{1} << 53);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(due * (0.5 + share / 2)));
}

std::optional<std::chrono::nanoseconds> wait_before_retry(const RetryPolicy& policy, std::uint16_t attempts,
                                                          std::uint64_t random) {
  if (attempts >= policy.attempts || attempts == 0) return std::nullopt;
  return backoff_wait({policy.first_wait, policy.growth, policy.max_wait}, attempts, random);
}

void RetryBudget::succeeded() {
  MutexLock lock(mutex_);
  tokens_ = std::min(tokens_ + options_.per_call, options_.max);
}

bool RetryBudget::take() {
  MutexLock lock(mutex_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace weft::rpc
