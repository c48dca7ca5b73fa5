// AgentCounts: what an agent has done since it was made, for metrics and tests.
// Thread-safety: AgentCounters may be used from any thread; AgentCounts is a value.
#pragma once

#include <weft/rpc/core/memory_pool.h>

#include <atomic>
#include <cstdint>

namespace weft::rpc {

struct AgentCounts {
  std::uint64_t connections_made = 0;      // whose handshake was completed, by either side
  std::uint64_t connections_refused = 0;   // wrong, expired or missing credentials, or too many at a time
  std::uint64_t connections = 0;           // now
  std::uint64_t calls_made = 0;            // by this agent
  std::uint64_t calls_served = 0;          // requests that came in, refused ones too
  std::uint64_t calls_denied = 0;          // by permissions
  std::uint64_t calls_shed = 0;            // for want of room: limits
  std::uint64_t serving = 0, waiting = 0;  // calls under way now: that came in, that went out
  MemoryPool::Counts memory;               // of arriving attachments
};

struct AgentCounters {
  std::atomic<std::uint64_t> connections_made{0}, connections_refused{0};
  std::atomic<std::uint64_t> calls_served{0}, calls_denied{0}, calls_shed{0};

  static void count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace weft::rpc
