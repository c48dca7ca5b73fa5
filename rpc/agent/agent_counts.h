// AgentCounts: what an agent has done since it was made, for metrics and tests.
// Thread-safety: AgentCounters may be used from any thread; AgentCounts is a value.
#pragma once

#include <weft/rpc/core/memory_pool.h>

#include <atomic>
#include <cstdint>

namespace weft::rpc {

struct AgentCounts {
  std::uint64_t connections_made = 0;  // whose handshake was completed, by either side
  // Wrong, expired or missing credentials, no word within the handshake's time, or too many at a time.
  std::uint64_t connections_refused = 0;
  std::uint64_t connections = 0;         // now
  std::uint64_t handshakes = 0;          // now: connections that came in and whose handshake is not complete
  std::uint64_t lanes_made = 0;          // in addition to connections (AgentOptions::lanes)
  std::uint64_t calls_made = 0;          // by this agent
  std::uint64_t calls_served = 0;        // requests that came in, refused ones too
  std::uint64_t calls_denied = 0;        // by permissions
  std::uint64_t calls_shed = 0;          // because a limit was reached
  std::uint64_t calls_retried = 0;       // attempts after the first
  std::uint64_t peers_silent = 0;        // connections closed because no heartbeat came
  std::uint64_t exceptions_dropped = 0;  // of continuations, and of jobs of loops and handler threads
  std::uint64_t serving = 0, waiting = 0;  // calls under way now: that came in, that went out
  std::uint64_t serving_bytes = 0;         // of requests that handlers hold now
  std::uint64_t waiting_bytes = 0;  // of the calls that went out: Limits::outgoing_bytes, outgoing_values
  // Of requests and replies, headers and attachments.
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  MemoryPool::Counts memory;  // of arriving attachments
};

struct AgentCounters {
  std::atomic<std::uint64_t> connections_made{0}, connections_refused{0}, lanes_made{0};
  std::atomic<std::uint64_t> calls_served{0}, calls_denied{0}, calls_shed{0}, calls_retried{0},
      peers_silent{0}, exceptions_dropped{0};
  std::atomic<std::uint64_t> bytes_sent{0}, bytes_received{0};

  static void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
    counter.fetch_add(more, std::memory_order_relaxed);
  }
};

// Of one method that is served. Thread-safe.
struct MethodCounters {
  std::atomic<std::uint64_t> accepted{0}, answered{0}, failed{0};  // failed: of those answered
};

}  // namespace weft::rpc
