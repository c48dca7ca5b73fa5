// CallOptions: what a caller asks of one call. Given with Peer::with().
#pragma once

#include <weft/rpc/agent/retry.h>

#include <chrono>
#include <optional>

namespace weft::rpc {

// A deadline that says that there is none, whatever the agent's default.
inline constexpr std::chrono::nanoseconds no_deadline = std::chrono::nanoseconds::max();

struct CallOptions {
  // From the moment the call is made until its result is here; travels as remaining time. None:
  // AgentOptions::deadline.
  std::optional<std::chrono::nanoseconds> deadline;
  std::optional<RetryPolicy> retry;  // none: AgentOptions::retry
  bool idempotent = false;           // running it twice does no harm, although its method does not say so
  // While the peer cannot be reached, the call waits for a connection until its deadline. Otherwise the call
  // fails with the first failed attempt to connect, and at once while the next attempt is not due
  // (AgentOptions::connect_backoff): not_sent, so that the caller may choose another peer.
  bool wait_for_ready = false;
  // How long the call may wait for a connection; then it fails with unavailable and not_sent. None: until
  // its deadline.
  std::optional<std::chrono::nanoseconds> connect_within;
};

}  // namespace weft::rpc
