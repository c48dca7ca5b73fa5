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
// Owned by AgentCore. Thread-safe. It calls no function of other classes with its mutex locked, except
// `make`.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/core/recent_map.h>
#include <weft/rpc/endpoint/session.h>

#include <map>
#include <set>
#include <unordered_map>

namespace weft::rpc {

class WEFT_EXPORT Sessions final : public std::enable_shared_from_this<Sessions> {
 public:
  // Makes a session. number: unique among the sessions of this agent.
  using Make = std::function<std::shared_ptr<Session>(std::uint64_t number)>;

  // id_seed, own: Runtime::id_seed and Runtime::process.
  Sessions(AgentCore& core, std::uint64_t id_seed, ProcessId own);

  // The session for a connection to that incarnation. is_kept: as Session::is_kept(); otherwise a session is
  // made for each connection. identity: the proven identity of the peer. Throws permission_denied if the
  // incarnation belongs to another agent or identity, protocol_error if it has stated other features before.
  std::shared_ptr<Session> open(const AgentId& peer, const std::string& identity, const ProcessId& process,
                                bool is_kept, const Make& make);
  // The session has a connection: ends its absence. false: the session was closed.
  bool connected(const Session& session);
  // The session has no connection: its absence begins, or goes on. false: the session is not kept because of
  // a limit, or because Heartbeat::timeout is 0, or it was closed.
  bool begin_absence(const Session& session, const Error& reason, const std::shared_ptr<Loop>& loop);
  // The incarnation is gone: the caller ends the returned session. null: it was gone before. The second form
  // has no effect, and returns false, if the incarnation has another session by now.
  std::shared_ptr<Session> close(const AgentId& peer);
  bool close(const Session& session);

  std::shared_ptr<Session> find(const AgentId& peer) const;        // null: no session
  std::shared_ptr<Session> latest(const std::string& name) const;  // of any incarnation; null: none
  // Whether the peer is connected or may return, and whether it is connected.
  bool knows(const AgentId& peer) const { return find(peer) != nullptr; }
  bool is_connected(const AgentId& peer) const;
  bool is_absent(const AgentId& peer) const;  // its last connection has ended, and it may return
  // true: a session with this incarnation was closed. Only the latest incarnations are remembered.
  bool is_gone(const AgentId& peer) const;
  // The agent to which the incarnation belongs, which may be this agent. nullopt: unknown.
  std::optional<AgentId> agent_of(std::uint64_t incarnation) const;
  std::vector<AgentId> absent(const std::string& name) const;  // the absent incarnations of that name
  // Whether any absent incarnation of that name is on this host and in its network namespace.
  bool is_absent_on_this_host(const std::string& name) const;
  const ProcessId& own_process() const { return own_; }  // the process of this agent
  // Random and secret; the tables of calls hash ids with it (id_map.h).
  std::uint64_t id_seed() const { return id_seed_; }

  // The bytes that all sessions keep, and whether they exceed the limit.
  std::atomic<std::uint64_t>& kept_total() { return kept_total_; }
  bool keeps_too_much() const { return kept_total_ > max_kept_total_; }

  // The number of requests so far, not counting requests of background methods. sent, received: in the
  // sessions with peers of the given names. ever: in all sessions, in both directions, including ended ones.
  struct Requests {
    std::uint64_t sent = 0, received = 0, ever = 0;
  };
  Requests requests_with(const std::set<std::string>& names) const;

  // The sessions with connected and absent peers, and of this agent with itself. all_alive(): also those that
  // are closed, and may have jobs left. clear() removes all of them, for the end of the agent.
  std::vector<std::shared_ptr<Session>> all() const;
  std::vector<std::shared_ptr<Session>> all_alive() const;
  void clear();

 private:
  class Absence;
  struct Entry {
    std::shared_ptr<Session> session;
    std::string identity;
    ProcessId process;
    std::shared_ptr<Absence> absence = nullptr;  // null: the peer is connected
    std::size_t* counted_in = nullptr;
  };
  using Entries = std::map<AgentId, Entry>;
  // The entries of all incarnations of that name.
  struct Named {
    Entries::const_iterator first, last;
    Entries::const_iterator begin() const { return first; }
    Entries::const_iterator end() const { return last; }
  };
  Named named(const std::string& name) const WEFT_REQUIRES(mutex_) {
    return {entries_.lower_bound({name, 0}), entries_.upper_bound({name, ~std::uint64_t{0}})};
  }
  // The name to which an incarnation belongs, if it is known, or if it is gone. null: not so.
  const std::string* name_of(std::uint64_t incarnation) const WEFT_REQUIRES(mutex_);
  const std::string* over_name_of(std::uint64_t incarnation) const WEFT_REQUIRES(mutex_);
  Entries::iterator entry_of(const Session& session) WEFT_REQUIRES(mutex_);  // end(): closed, or replaced
  void end_absence(Entry& entry) WEFT_REQUIRES(mutex_);
  std::shared_ptr<Session> remove(Entries::iterator found) WEFT_REQUIRES(mutex_);
  void note_end(const Session& session) WEFT_REQUIRES(mutex_);
  void give_up(const AgentId& peer, const Absence& absence, const Error& reason);

  AgentCore& core_;
  const std::chrono::nanoseconds timeout_;
  const AgentId self_;
  const std::uint64_t id_seed_;
  const std::uint64_t max_kept_total_;
  std::atomic<std::uint64_t> kept_total_{0};
  const ProcessId own_;

  mutable Mutex mutex_;
  std::uint64_t last_number_ WEFT_GUARDED_BY(mutex_) = 0;
  Entries entries_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Session>> with_itself_ WEFT_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Session>> closed_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t requests_of_ended_ WEFT_GUARDED_BY(mutex_) = 0;  // sent and received
  std::size_t absent_used_ WEFT_GUARDED_BY(mutex_) = 0, absent_unused_ WEFT_GUARDED_BY(mutex_) = 0;
  // The name of each incarnation in entries_.
  std::unordered_map<std::uint64_t, std::string> names_ WEFT_GUARDED_BY(mutex_);
  // The names of the latest incarnations that are gone. Some of them may have connected again.
  RecentMap<std::uint64_t, std::string> over_used_ WEFT_GUARDED_BY(mutex_){max_lost_remembered};
  RecentMap<std::uint64_t, std::string> over_unused_ WEFT_GUARDED_BY(mutex_){4096};
};

}  // namespace weft::rpc
