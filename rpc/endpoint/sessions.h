// Sessions: the sessions of an agent with incarnations of peers (session.h). It also tracks which of these
// incarnations are absent.
//
// A peer is absent from the end of its last connection until the same incarnation connects again. The peer
// may return, so the session is kept. The peer is gone when its end is proven (AgentCore::lose), or when it
// was absent for the heartbeat's timeout. If the peer is on the same host, the agent watches its process
// during an absence: the end of the process proves the peer's end. Unused sessions are also kept, because the
// peer may have sent something. The number of absent peers and the bytes that are kept for them are limited.
//
// A peer chooses its incarnation itself, and other ids contain only the incarnation. So an incarnation
// belongs to one agent: the name that has stated it first, as long as the agent is connected or remembered.
// Owned by AgentCore. Thread-safe. AgentCore calls the functions with a mutex locked, so Sessions calls no
// function of AgentCore except `gone`, which runs on a loop.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/endpoint/session.h>

#include <deque>
#include <map>
#include <unordered_map>

namespace weft::rpc {

class WEFT_EXPORT Sessions final : public std::enable_shared_from_this<Sessions> {
 public:
  // A peer is gone; its entry has been removed.
  using Gone = std::function<void(const std::shared_ptr<Session>& session, const Error& reason)>;

  // self: this agent. id_seed, own: Runtime::id_seed and Runtime::process.
  Sessions(const AgentOptions& options, AgentId self, std::uint64_t id_seed, ProcessId own, Gone gone);
  ~Sessions();

  // A connection to that incarnation was made: ends the absence, and returns the session. null: the
  // incarnation is gone, or resumable is false (the connection has no sessions). identity: the proven
  // identity of the peer. Throws permission_denied if the incarnation belongs to another agent or identity.
  std::shared_ptr<Session> open(const AgentId& life, const std::string& identity, const ProcessId& process,
                                bool resumable);
  // The last connection to that incarnation has ended: begins the absence. false: the incarnation has no
  // session, or the session is not kept because of a limit or because Heartbeat::timeout is 0.
  bool begin_absence(const AgentId& life, const Error& reason, const std::shared_ptr<Loop>& loop);
  // The incarnation is gone: the caller ends the returned session. null: it was gone before, or it had no
  // session.
  std::shared_ptr<Session> close(const AgentId& life);

  std::shared_ptr<Session> find(const AgentId& life) const;  // null: no session
  bool is_absent(const AgentId& life) const;  // its last connection has ended, and it may return
  // true: the session with this incarnation was closed. Only the latest incarnations are remembered.
  bool is_gone(const AgentId& life) const;
  // The agent to which the incarnation belongs, which may be this agent. nullopt: unknown.
  std::optional<AgentId> agent_of(std::uint64_t incarnation) const;
  std::vector<AgentId> absent(const std::string& name) const;  // the absent incarnations of that name
  // Whether any absent incarnation of that name is on this host and in its network namespace.
  bool is_absent_on_this_host(const std::string& name) const;
  const ProcessId& own_process() const { return own_; }  // the process of this agent
  // Random and secret; the tables of calls hash ids with it (id_map.h).
  std::uint64_t id_seed() const { return id_seed_; }

  // The sessions with connected and absent peers. close_all() removes all of them; the caller ends the
  // returned sessions.
  std::vector<std::shared_ptr<Session>> all() const;
  std::vector<std::shared_ptr<Session>> close_all();

 private:
  class Absence;
  struct Entry {
    std::shared_ptr<Session> session;  // null: no connection of the peer has had sessions
    std::string identity;
    ProcessId process;
    std::shared_ptr<Absence> absence;  // null: the peer is connected
    std::size_t* counted_in = nullptr;
  };
  bool is_over(const AgentId& life) const WEFT_REQUIRES(mutex_);
  void end_absence(Entry& entry) WEFT_REQUIRES(mutex_);
  std::shared_ptr<Session> remove(std::map<AgentId, Entry>::iterator found) WEFT_REQUIRES(mutex_);
  void give_up(const AgentId& life, const Absence& absence, const Error& reason);

  const std::chrono::nanoseconds timeout_;
  const AgentId self_;
  const std::uint64_t id_seed_;
  const std::uint64_t max_kept_, max_kept_total_;
  const std::shared_ptr<std::atomic<std::uint64_t>> kept_total_;  // Session::kept_total
  const ProcessId own_;
  const Gone gone_;

  mutable Mutex mutex_;
  std::map<AgentId, Entry> entries_ WEFT_GUARDED_BY(mutex_);
  std::size_t absent_used_ WEFT_GUARDED_BY(mutex_) = 0, absent_unused_ WEFT_GUARDED_BY(mutex_) = 0;
  // The name of each incarnation in entries_, and of the latest incarnations that are gone.
  std::unordered_map<std::uint64_t, std::string> names_ WEFT_GUARDED_BY(mutex_);
  // The incarnations that are gone, the oldest first. They are in names_.
  std::deque<std::uint64_t> over_used_ WEFT_GUARDED_BY(mutex_), over_unused_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
