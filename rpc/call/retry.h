// Retries: which failed calls are repeated; Backoff: the waits between attempts.
//
// A call is retried if the peer could not be reached, was lost, was leaving, or had reached a limit. A call
// that may have run is retried only if its method or CallOptions::idempotent declares it idempotent. The
// error of a handler is never retried. The waits between attempts grow, with jitter. A budget for each peer
// limits retries to a fraction of the calls, so that they do not make an overload worse (a token bucket as in
// gRPC's retryThrottling, gRFC A6). Calls with references or a pass are not retried, because the layers undo
// their changes when an attempt fails. Thread-safety: RetryBudget may be used from any thread; the rest are
// values and pure functions.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>

namespace weft::rpc {

// Waits between attempts: they grow from `first` by the factor `growth` up to `max`. Each wait is random,
// between 0.5 and 1 times this value, so that callers that failed at the same time do not retry at the same
// time.
struct Backoff {
  std::chrono::nanoseconds first;
  double growth;
  std::chrono::nanoseconds max;
};

// The wait after `failures` failures in a row, at least 1; `random` determines the jitter.
WEFT_EXPORT std::chrono::nanoseconds backoff_wait(const Backoff& backoff, std::uint32_t failures,
                                                  std::uint64_t random);
// A random number for jitter. It differs between agents and between salts, and is the same in each run of a
// simulation.
WEFT_EXPORT std::uint64_t jitter(std::uint64_t incarnation, std::uint64_t salt);

// How often and when a call is retried; a value. The waits between attempts are as in Backoff.
struct RetryPolicy {
  std::uint16_t attempts = 4;  // including the first one
  std::chrono::nanoseconds first_wait = std::chrono::milliseconds{50};
  double growth = 2;  // of the wait, from one attempt to the next
  std::chrono::nanoseconds max_wait = std::chrono::seconds{2};
};

// Whether a call that failed with this error may be retried. An error of a handler is never retried, whatever
// its kind.
WEFT_EXPORT bool is_retriable(const std::exception_ptr& error, bool idempotent);

// The wait after `attempts` failed attempts. nullopt: no attempt is left.
WEFT_EXPORT std::optional<std::chrono::nanoseconds> wait_before_retry(const RetryPolicy& policy,
                                                                      std::uint16_t attempts,
                                                                      std::uint64_t random);

// The size of a RetryBudget, in retries.
struct RetryBudgetOptions {
  double max = 20;        // the number of retries in a full budget; at the start the budget is full
  double per_call = 0.1;  // retries that each successful call permits
};

class WEFT_EXPORT RetryBudget {
 public:
  explicit RetryBudget(RetryBudgetOptions options) : options_(options), tokens_(options.max) {}
  void succeeded();  // a call has succeeded: adds per_call, up to max
  bool take();       // takes one retry; false: the budget is used up

 private:
  const RetryBudgetOptions options_;
  Mutex mutex_;
  double tokens_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
