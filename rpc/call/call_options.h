// CallOptions: deadline, retries and similar options of a call; Metadata: text that a call carries.
// Peer::with() and Peer::with_metadata() set them. Values.
#pragma once

#include <weft/rpc/call/retry.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

namespace weft::rpc {

// No deadline, whatever the agent's default is.
inline constexpr std::chrono::nanoseconds no_timeout = std::chrono::nanoseconds::max();

struct WEFT_EXPORT CallOptions {
  // From the call until its result; sent as remaining time. None: AgentOptions::call_timeout.
  std::optional<std::chrono::nanoseconds> timeout;
  std::optional<RetryPolicy> retry;  // none: AgentOptions::retry
  // true: the call may run twice, even if its method is not declared idempotent. None: false.
  std::optional<bool> idempotent;
  // While the peer cannot be reached, the call waits for a connection until its deadline. Otherwise the call
  // fails with the first failed attempt to connect, and at once while the next attempt is not due
  // (AgentOptions::connect_backoff): not_sent, so that the caller may choose another peer. None: false.
  std::optional<bool> wait_for_ready;
  // How long the call may wait for a connection; then it fails with unavailable and not_sent. None: until
  // its deadline.
  std::optional<std::chrono::nanoseconds> connect_within;

  // Sets each option that `later` sets; the others keep their values.
  void merge(const CallOptions& later);
};

// g++ 12 copies the bytes of an aggregate that is initialized by braces within a co_await expression, and
// destroys it twice. So the options have no destructor, and do not include Metadata, which has one.
static_assert(std::is_trivially_copyable_v<CallOptions>);

// Text by key that a call sends with its arguments: CallContext::metadata(key) at the callee.
using Metadata = std::map<std::string, std::string>;

}  // namespace weft::rpc
