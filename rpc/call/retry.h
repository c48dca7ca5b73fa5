// Retries: when a call that failed is made once more; Backoff: the waits between repeated attempts.
//
// A call is retried where the failure is of the way and not of the work: the peer could not be reached, was
// lost, was leaving, or had no room. One that may have run is retried only where that does no harm: its
// method or CallOptions::idempotent declares it idempotent. Waits grow, with jitter; a budget for each peer
// keeps retries a fraction of the calls, so that they never make an overload worse (token bucket as in gRPC's
// retryThrottling, gRFC A6). Calls that carry references or a pass are not retried: their layers have undone
// their part. Thread-safety: RetryBudget any thread; the rest values and pure functions.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/export.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>

namespace weft::rpc {

// Waits between attempts: they grow from `first` by the factor `growth` up to `max`. Each wait is drawn
// between half of that value and all of it, so that callers that failed together do not return together.
struct Backoff {
  std::chrono::nanoseconds first;
  double growth;
  std::chrono::nanoseconds max;
};

// The wait after `failures` failures in a row, at least 1; `random` decides the jitter.
WEFT_EXPORT std::chrono::nanoseconds backoff_wait(const Backoff& backoff, std::uint32_t failures,
                                                  std::uint64_t random);
// Randomness for jitter: differs between agents and between salts, and repeats in each run of a simulation.
WEFT_EXPORT std::uint64_t jitter(std::uint64_t incarnation, std::uint64_t salt);

struct RetryPolicy {
  std::uint16_t attempts = 4;  // in all, the first one too
  std::chrono::nanoseconds first_wait = std::chrono::milliseconds{50};
  double growth = 2;  // of the wait, from one attempt to the next
  std::chrono::nanoseconds max_wait = std::chrono::seconds{2};
};

// Whether a call that ended so may be made again. The error of a handler is its answer, whatever its kind.
WEFT_EXPORT bool is_retriable(const std::exception_ptr& error, bool idempotent);

// The wait after `attempts` attempts have failed. Nothing: no attempts are left.
WEFT_EXPORT std::optional<std::chrono::nanoseconds> wait_before_retry(const RetryPolicy& policy,
                                                                      std::uint16_t attempts,
                                                                      std::uint64_t random);

struct RetryBudgetOptions {
  double max = 20;        // retries in a row, of a peer that has been well
  double per_call = 0.1;  // retries that each call that succeeds allows
};

class WEFT_EXPORT RetryBudget {
 public:
  explicit RetryBudget(RetryBudgetOptions options) : options_(options), tokens_(options.max) {}
  void succeeded();
  bool take();  // false: spent

 private:
  const RetryBudgetOptions options_;
  std::mutex mutex_;  // guards tokens_
  double tokens_;
};

}  // namespace weft::rpc
