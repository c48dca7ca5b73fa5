// CallOptions: timeout, retries and similar options of a call; set with Peer::with(). Metadata: text that is
// sent with a call; set with Peer::with_metadata(). Both are values.
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

struct CallOptions {
  // The time from the call until its result. The request states the remaining time. nullopt:
  // AgentOptions::call_timeout applies.
  std::optional<std::chrono::nanoseconds> timeout;
  std::optional<RetryPolicy> retry;  // nullopt: AgentOptions::retry applies
  // true: the call may run twice, even if its method is not declared idempotent. nullopt: false.
  std::optional<bool> idempotent;
  // true: while the peer cannot be reached, the call waits for a connection until its deadline. false: the
  // call fails if an attempt to connect fails. During the wait before the next attempt
  // (AgentOptions::connect_backoff), calls fail at once. The error has Execution::not_sent, so the caller may
  // choose another peer. nullopt: false.
  std::optional<bool> wait_for_ready;
  // The maximum time that the call waits for a connection. After this time, the call fails with unavailable
  // and not_sent. nullopt: the call waits until its deadline.
  std::optional<std::chrono::nanoseconds> connect_within;
  // true: if the connection is lost, the call fails at once with peer_lost, and is cancelled at the callee. A
  // call that is made while there is no connection fails with unavailable and not_sent. false: the call waits
  // for the next connection to the same incarnation, until its deadline, or until that incarnation is gone.
  // nullopt: false. PeerSet sets it, because it has other replicas.
  std::optional<bool> fail_fast;

  // Sets each option that `later` sets; the others keep their values.
  void merge(const CallOptions& later) {
    if (later.timeout) timeout = later.timeout;
    if (later.retry) retry = later.retry;
    if (later.idempotent) idempotent = later.idempotent;
    if (later.wait_for_ready) wait_for_ready = later.wait_for_ready;
    if (later.connect_within) connect_within = later.connect_within;
    if (later.fail_fast) fail_fast = later.fail_fast;
  }
};

// g++ 12 copies the bytes of an aggregate that is initialized by braces within a co_await expression, and
// destroys it twice. So CallOptions has no destructor, and Metadata, which has a destructor, is separate.
static_assert(std::is_trivially_copyable_v<CallOptions>);

// Text by key that a call sends with its arguments. The callee reads it with CallContext::metadata(key).
using Metadata = std::map<std::string, std::string>;

}  // namespace weft::rpc
