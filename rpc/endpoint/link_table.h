// LinkTable: the connections of one agent, and the incarnations of peers that it refuses.
//
// Owned by AgentCore. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/recent_map.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace weft::rpc {

class Link;
struct AgentCounts;

class WEFT_EXPORT LinkTable {
 public:
  using Links = std::vector<std::shared_ptr<Link>>;  // in the order of their creation

  // max_handshakes: the maximum number of pending handshakes of accepted connections.
  explicit LinkTable(std::size_t max_handshakes) : max_handshakes_(max_handshakes) {}

  // The number of a new link: 1, 2, 3 and so on.
  std::uint64_t next_number() { return ++last_link_; }
  // accepted: the link counts as a pending handshake until handshake_over() or remove(). If there are too
  // many pending handshakes, returns the link with the oldest one. The caller closes this link, so that
  // silent connections cannot exclude others.
  std::shared_ptr<Link> add(const std::shared_ptr<Link>& link, bool accepted);
  void handshake_over(const std::shared_ptr<Link>& link);
  void remove(const std::shared_ptr<Link>& link);  // the link has ended
  void clear();                                    // removes all links

  Links all() const;  // including links whose handshake is not complete

  // forget(): later connections to this incarnation are refused. forgotten(): the error with which they are
  // refused, on both sides; nullopt: the incarnation is not forgotten.
  void forget(const AgentId& peer, const Error& error);
  std::optional<Error> forgotten(const AgentId& peer) const;

  void add_to(AgentCounts& counts) const;  // sets `handshakes` and `connections`

 private:
  // By their numbers: an order that a simulation repeats, in contrast to the order of pointers.
  using ByNumber = std::map<std::uint64_t, std::shared_ptr<Link>>;

  const std::size_t max_handshakes_;
  std::atomic<std::uint64_t> last_link_{0};

  mutable Mutex mutex_;
  ByNumber links_ WEFT_GUARDED_BY(mutex_);
  ByNumber handshaking_ WEFT_GUARDED_BY(mutex_);  // accepted links whose hello has not arrived
  RecentMap<AgentId, Error> forgotten_ WEFT_GUARDED_BY(mutex_){1024};
};

}  // namespace weft::rpc
