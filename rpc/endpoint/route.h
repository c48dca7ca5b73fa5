// Route: the path from this agent to one peer, by name or by address. It has the session with the peer, or
// the calls that wait for one.
//
// Owned by RouteTable and by every Peer handle. A route belongs to one loop; functions are called there
// unless stated otherwise. A session begins with the first connection. After a failed attempt to connect, the
// route pauses before the next attempt (AgentOptions::connect_backoff). If a call has failed with that
// attempt, calls without a session fail during the pause; waits() has the exceptions.
#pragma once

#include <weft/rpc/call/pending_call.h>
#include <weft/rpc/call/retry.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/transport/address.h>

#include <atomic>
#include <deque>

namespace weft::rpc {

class AgentCore;
class Connection;
class Session;

class WEFT_EXPORT Route final : public CallRoute, public std::enable_shared_from_this<Route> {
 public:
  // is_to_visitor: as the function of that name.
  Route(const std::shared_ptr<AgentCore>& core, std::shared_ptr<Loop> loop, std::string name,
        std::vector<Address> addresses, bool is_to_visitor);

  const std::string& name() const { return name_; }  // the peer's name, or the requested address
  // For messages: the peer's name, once it is known. Any thread.
  std::string peer_name() const override;
  // The incarnation of the peer, from a handshake or from the job's store; null: unknown. Any thread.
  std::shared_ptr<const AgentId> identity() const override;
  void identify(AgentId id);  // sets identity(); any thread

  void submit(std::shared_ptr<PendingCall> call) override;  // any thread
  void cancel(std::shared_ptr<PendingCall> call) override;  // any thread
  // Connects without a call, once, as soon as the pause permits. No effect if the session is connected. Any
  // thread.
  void connect();
  // The state of the connection, which may change at any time. Any thread.
  enum class Reach : std::uint8_t {
    idle,        // no failure is known: a call would connect
    connecting,  // an attempt runs, and none has failed since the last connection
    connected,
    failing,  // the last attempt failed: the route pauses, or makes the next attempt
  };
  Reach reach() const;

  const Address& dialled() const { return dialled_; }  // the address of the latest dial
  // The name that the peer's certificate must have; empty: that of the host, because an address is dialled.
  std::string expected_agent() const { return Address::looks_like(name_) ? std::string() : name_; }
  // The calls that wait for a connection.
  const std::deque<std::shared_ptr<PendingCall>>& waiting() const { return waiting_; }
  void learn(std::vector<Address> addresses);
  // The peer is absent: connects repeatedly until the peer returns, or until end_of().
  void rejoin();                     // any thread
  void end_of(const AgentId& peer);  // the peer is gone. Any thread.
  // Whether the route was created because the peer connected to this agent. Any thread.
  bool is_to_visitor() const { return is_to_visitor_; }
  // Drops the peer's addresses, unless identity() is another incarnation. Any thread.
  void forget(const AgentId& peer);
  // The peer has connected. dialled: this route has dialled.
  void connected(std::shared_ptr<Session> session, bool dialled);
  // This agent itself was found at the address: all calls go to its route to itself.
  void lead_to(const std::shared_ptr<Route>& own);
  void dial_failed(const Error& reason);   // a dial of one address has failed: tries the next address
  void fail_waiting(const Error& reason);  // including calls with wait_for_ready
  void shut_down(const Error& reason);

 private:
  enum class State : std::uint8_t { idle, dialling, pausing, redialling };
  void place(std::shared_ptr<PendingCall> call);
  void place_submitted();
  template <class Next>
  void hand_over_to(Next& next);  // submits the calls that wait to the session, or to the route
  std::shared_ptr<Session> take_latest(AgentCore& core);
  bool is_connected() const;
  bool is_dialling() const { return state_ == State::dialling || state_ == State::redialling; }
  std::shared_ptr<Route> own() const;
  std::shared_ptr<Session> session_for(const PendingCall& call) const WEFT_REQUIRES(mutex_);
  void dial();
  void dial_all(const AgentCore& core, const Error& nowhere);
  void dial_next(const Error& last);
  void note_failure(const std::exception& error);
  void dial_ended(const Error& reason);  // called when no address is left
  void dial_later();
  bool refuses() const;
  bool waits(const PendingCall& call, const AgentCore& core, const Error& reason) const;
  void end_pause();
  void fail(PendingCall& call, const Error& reason) const;
  void prune();  // removes ended calls from waiting_
  void dialled(Result<std::shared_ptr<Connection>> made);

  std::weak_ptr<AgentCore> core_;
  const std::string name_;
  const bool is_to_visitor_;
  std::vector<Address> addresses_;
  std::deque<std::shared_ptr<PendingCall>> waiting_;  // may contain calls that have ended
  std::size_t prune_at_ = 64;
  std::atomic<State> state_{State::idle};
  std::atomic<bool> is_wanted_{false};  // connect() was called
  bool is_rejoining_ = false;
  std::uint32_t failed_dials_ = 0;  // in a row
  Clock::time_point not_before_{};  // the earliest time of the next dial
  // The error with which calls fail until not_before_; nullopt: no call has failed with the last dial, or the
  // peer has no address.
  std::optional<Error> refusal_;
  Loop::TimerId redial_ = 0;
  struct {
    int failed = 0;   // addresses that have failed in this dial
    int refused = 0;  // those of them that have refused
    int proven = 0;   // those whose refusal proves that no process listens
  } outcome_;
  std::uint32_t proven_dials_ = 0;  // in a row, in which all addresses have proved it
  std::deque<Address> untried_;     // addresses that the current dial has not tried
  Address dialled_;

  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<Route> own_ WEFT_GUARDED_BY(mutex_);  // lead_to()
  // Calls wait here, so that later calls do not overtake them.
  bool has_waiting_ WEFT_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const AgentId> identity_ WEFT_GUARDED_BY(mutex_);
  // The calls that other threads have submitted. The posted jobs own the calls.
  std::deque<std::weak_ptr<PendingCall>> submitted_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
