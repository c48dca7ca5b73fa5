// CallAccounts: counts the calls of an agent and the memory that they use, and waits for their end (drain).
//
// Every call is counted from its beginning to its end: calls of this agent by outgoing_began() and
// outgoing_ended(), calls of its peers by an ActiveCall. Limits of the agent bound the counts. Owned by the
// agent and by each call. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/future.h>
#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/wire/limits.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace weft::rpc {

class Admission;

// A number that several threads increase. Its copies have the value at the time of the copy.
class Counter {
 public:
  Counter(std::uint64_t value = 0) : value_(value) {}
  Counter(const Counter& other) noexcept : Counter(static_cast<std::uint64_t>(other)) {}
  Counter& operator=(const Counter& other) noexcept {
    value_ = other;
    return *this;
  }
  operator std::uint64_t() const { return value_; }  // the present value
  // The memory order is relaxed: the addition orders no other memory access.
  void add(std::uint64_t more = 1) { value_.fetch_add(more, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_;
};

// What an agent has counted since it was created.
struct AgentCounters {
  Counter connections_made;  // with a completed handshake, from either side
  // Connections with wrong, expired or missing credentials, with a handshake that timed out, or beyond the
  // maximum of pending handshakes.
  Counter connections_refused;
  Counter lanes_made;          // in addition to connections (AgentOptions::lanes)
  Counter calls_served;        // requests that arrived, including refused ones
  Counter calls_denied;        // by permissions
  Counter calls_shed;          // because a limit was reached
  Counter calls_retried;       // attempts after the first
  Counter peers_silent;        // connections closed because no heartbeat arrived
  Counter exceptions_dropped;  // thrown by continuations, and by jobs of loops and handler threads
  // Bytes of requests and replies, with their headers and attachments.
  Counter bytes_sent, bytes_received;
};

// The counters of an agent and its present state, for metrics and tests. A value.
struct AgentCounts : AgentCounters {
  std::uint64_t connections = 0;           // now
  std::uint64_t handshakes = 0;            // now: accepted connections whose handshake is not complete
  std::uint64_t calls_made = 0;            // by this agent
  std::uint64_t serving = 0, waiting = 0;  // calls in flight now: of peers, and of this agent
  // Now: the bytes of requests that are being read, and of requests of peers' calls.
  std::uint64_t serving_bytes = 0;
  std::uint64_t waiting_bytes = 0;  // now: calls of this agent (Limits::outgoing_bytes, outgoing_values)
  MemoryPool::Counts memory;        // the memory for arriving attachments
};

// The memory that a call uses at its caller, in bytes.
struct OutgoingSize {
  std::uint64_t attached = 0;  // attachments
  std::uint64_t values = 0;    // its other arguments, if they are large
};

class WEFT_EXPORT CallAccounts final : public std::enable_shared_from_this<CallAccounts> {
 public:
  explicit CallAccounts(const Limits& limits);

  // The counters that the agent's other objects increment.
  AgentCounters& counters() { return counters_; }
  AgentCounts counts() const;  // without `connections`, `handshakes` and `memory`
  // The id of a new call of this agent: 1, 2, 3 and so on. AgentCounts::calls_made is the number of these
  // ids.
  std::uint64_t next_call_id() { return next_call_++; }
  // Bounds the memory of arriving messages. The agent's connections share it.
  const std::shared_ptr<Admission>& admission() const { return admission_; }

  // A call of this agent begins and ends. background: Job::quiesce() does not wait for the call.
  // outgoing_began() returns false if the call exceeds a limit. The caller must then fail the call, and call
  // outgoing_ended() as for other calls.
  bool outgoing_began(OutgoingSize size, bool background);
  void outgoing_ended(OutgoingSize size, bool background);
  // Counts a call between two attempts, with the bytes that it keeps, until the returned pointer is
  // destroyed.
  std::shared_ptr<void> retry_waits(OutgoingSize size);

  // Counts a request of a peer and its bytes, until the destructor of its IncomingCall calls release().
  // control: MethodEntry::control. admitted: true if the connection has reserved the bytes. hold() returns
  // false, and counts nothing, if a limit of the agent is exceeded.
  bool hold(std::uint64_t bytes, bool control, bool admitted);
  void release(std::uint64_t bytes, bool control);
  // For ActiveCall: a call of a peer begins and ends.
  void call_began(bool background) { ++(background ? served_.background : served_.work); }
  void call_ended(bool background);

  // Calls in flight.
  std::int64_t served() const { return served_.all(); }
  std::int64_t made() const { return made_.all(); }
  std::int64_t served_work() const { return served_.work; }             // without background calls
  std::int64_t made_work() const { return made_.work + retry_waits_; }  // without background calls

  // Sets draining(), then calls `begun`. The future completes when no call is in flight. It fails with
  // deadline_exceeded if calls are in flight after `timeout`, and with failed_precondition if the future of
  // an earlier drain() has not completed.
  Future<void> drain(const std::shared_ptr<Loop>& loop, std::chrono::nanoseconds timeout,
                     const std::function<void()>& begun);
  // draining(): whether drain() or set_draining() was called. fail_drain(): fails the future of drain(), if
  // it has not completed.
  bool draining() const { return draining_; }
  void set_draining() { draining_ = true; }
  void fail_drain(const Error& reason) { end_drain(reason); }

 private:
  struct Draining {
    explicit Draining(std::shared_ptr<Loop> on) : loop(std::move(on)), promise(loop) {}
    std::shared_ptr<Loop> loop;
    Promise<void> promise;
    Loop::TimerId timer = 0;  // on the loop
  };
  struct InFlight {
    std::atomic<std::int64_t> work{0}, background{0};
    std::int64_t all() const { return work + background; }
  };
  void check_drained() {
    if (draining_ && served_.all() == 0 && made_.all() == 0) end_drain(Result<void>{});
  }
  void end_drain(Result<void> result);

  const Limits limits_;
  AgentCounters counters_;
  std::atomic<std::uint64_t> next_call_{1};
  InFlight served_, made_;
  std::atomic<std::int64_t> retry_waits_{0};
  std::atomic<std::uint64_t> outgoing_bytes_{0};   // attachments of this agent's calls
  std::atomic<std::uint64_t> outgoing_values_{0};  // other arguments of these calls, if they are large
  std::atomic<std::uint64_t> held_calls_{0};       // requests of peers, without control
  const std::shared_ptr<Admission> admission_;     // counts the bytes of arriving messages
  std::atomic<bool> draining_{false};
  Mutex mutex_;
  std::shared_ptr<Draining> drain_ WEFT_GUARDED_BY(mutex_);
};

// An ActiveCall counts as one served call while it exists; drain() waits for it. It moves from the call to
// the reply, and ends when the reply has been written.
class WEFT_EXPORT ActiveCall {
 public:
  explicit ActiveCall(std::shared_ptr<CallAccounts> accounts, bool background = false)
      : accounts_(std::move(accounts)), background_(background) {
    accounts_->call_began(background_);
  }
  ActiveCall(ActiveCall&&) noexcept = default;
  ActiveCall& operator=(ActiveCall&&) = delete;
  ~ActiveCall() {
    if (accounts_ != nullptr) accounts_->call_ended(background_);
  }

 private:
  std::shared_ptr<CallAccounts> accounts_;
  bool background_;
};

}  // namespace weft::rpc
