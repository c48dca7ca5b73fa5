// Sessions: which incarnations of peers an agent has sessions with (session.h), and which of them are absent.
//
// A peer is absent from the end of its last connection until it connects again, as the same incarnation.
// Meanwhile nothing is known of it but that it may return, so the session is kept. The peer is gone when
// something proves it (AgentCore::lose) or when it was absent for the heartbeat's timeout. What proves it on
// one host is the end of its process, which an absence watches. Sessions that carried nothing are waited for
// too, since the peer's side may have sent something, but only a limited number of them at a time. Owned by
// AgentCore. Thread-safe; AgentCore calls it under its own mutex, so it calls nothing of AgentCore but
// `gone`, and that on a loop.
#pragma once

#include <weft/rpc/core/process_id.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/endpoint/session.h>

#include <deque>
#include <map>
#include <set>

namespace weft::rpc {

class WEFT_EXPORT Sessions final : public std::enable_shared_from_this<Sessions> {
 public:
  // A peer is gone, and so is its entry.
  using Gone = std::function<void(const std::shared_ptr<Session>& session, const Error& reason)>;

  Sessions(const AgentOptions& options, std::uint64_t id_seed, ProcessId own, Gone gone);
  ~Sessions();

  // A connection to that incarnation came about: its absence ends. null: it is gone for good.
  std::shared_ptr<Session> open(const AgentId& life, const ProcessId& process);
  // Its last connection has ended: it is absent from now on. false: nothing waits for it.
  bool begin_absence(const AgentId& life, const Error& reason, const std::shared_ptr<Loop>& loop);
  // It is gone: the caller ends the session that it gets. null: that is known.
  std::shared_ptr<Session> close(const AgentId& life);

  std::shared_ptr<Session> find(const AgentId& life) const;
  bool is_absent(const AgentId& life) const;
  bool is_gone(const AgentId& life) const;
  std::vector<AgentId> absent(const std::string& name) const;  // incarnations of that name
  bool is_absent_on_this_host(const std::string& name) const;  // some incarnation of that name
  const ProcessId& own_process() const { return own_; }
  // Random and secret; ids of calls are hashed with it.
  std::uint64_t id_seed() const { return id_seed_; }
  std::vector<std::shared_ptr<Session>> all() const;
  std::vector<std::shared_ptr<Session>> close_all();

 private:
  class Absence;
  struct Entry {
    std::shared_ptr<Session> session;
    ProcessId process;
    std::shared_ptr<Absence> absence;  // null: it is connected
    bool counted = false;              // in absent_unused_
  };
  void end_absence(Entry& entry);                                             // with the mutex
  std::shared_ptr<Session> remove(std::map<AgentId, Entry>::iterator found);  // with the mutex
  void give_up(const AgentId& life, const Absence& absence, const Error& reason);

  const std::chrono::nanoseconds timeout_;
  const std::uint64_t id_seed_;
  const std::uint64_t max_kept_;
  const ProcessId own_;
  const Gone gone_;

  mutable std::mutex mutex_;  // guards what follows
  std::map<AgentId, Entry> entries_;
  std::size_t absent_unused_ = 0;
  std::set<std::uint64_t> over_;           // incarnations: eight bytes of memory for each death
  std::deque<std::uint64_t> over_unused_;  // the latest of these that had carried nothing
};

}  // namespace weft::rpc
