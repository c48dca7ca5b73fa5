// PeerSet: several peers that serve the same methods, called like a single peer.
//
//   rpc::PeerSet markets{agent, {"tcp://a:7443", "tcp://b:7443"},
//                        {.policy = rpc::BalancePolicy::round_robin}};
//   auto quote = co_await markets.call<&Market::last>("ACME");
//   auto mine = co_await markets.key("ACME").call<&Market::last>("ACME");   // consistent_hash
//
// If a replica did not receive a call, the set tries the call on another replica. If the call may have run,
// the set does so only if the method is idempotent. Each replica is tried once. The set keeps the arguments
// for further attempts. If they are not copyable, the set makes only one attempt. A replica fails if it
// cannot be reached, is lost or shuts down, or if the deadline passes; errors of its handlers do not count.
// Connected replicas are preferred. Replicas that cannot be reached are reconnected in the background. Cheap
// to copy; copies share the state of the replicas. Thread-safe.
#pragma once

#include <weft/rpc/balance/replica_plan.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/peer.h>

namespace weft::rpc {

class Agent;

namespace detail {

// The state that copies of a PeerSet share.
class WEFT_EXPORT PeerSetState final : public std::enable_shared_from_this<PeerSetState> {
 public:
  using Names = std::vector<std::string>;
  using Resolver = std::function<Future<Names>()>;
  using Choice = ReplicaPlan::Choice;
  struct Chosen {
    Choice choice;
    Peer peer;
    std::size_t left = 1;  // replicas that were not tried, including this one
  };

  PeerSetState(const std::shared_ptr<AgentCore>& core, PeerSetOptions options, Resolver resolver);
  const std::shared_ptr<Loop>& loop() const { return loop_; }

  void set(const Names& names);
  void resolve();
  // Runs `ready` as soon as the first names are known, which is usually at once.
  void when_resolved(Callback ready);
  // Selects a replica that is not in `but`. nullopt: none is left.
  std::optional<Chosen> choose(std::optional<std::uint64_t> key, const std::vector<ReplicaPlan::Id>& but);
  void finish(const Choice& choice, ReplicaPlan::Outcome outcome);
  std::vector<ReplicaPlan::Replica> replicas() const;
  // The maximum time that an attempt waits for its connection. nullopt: until the deadline.
  std::optional<std::chrono::nanoseconds> connect_within(std::optional<Clock::time_point> deadline,
                                                         std::size_t left) const;
  // Completes when a call may try all replicas again. Fails if the agent ends.
  Future<void> pause();

 private:
  void resolved(Result<Names> names);
  void resolve_later(std::chrono::nanoseconds wait);
  void resolve_soon();
  // Updates the Reach of the replicas. Returns the routes that fail; the caller connects these routes with
  // the mutex unlocked.
  std::vector<std::shared_ptr<Route>> check_routes() WEFT_REQUIRES(mutex_);

  const std::weak_ptr<AgentCore> core_;
  const std::shared_ptr<Loop> loop_;
  const PeerSetOptions options_;
  const Resolver resolver_;  // null: the names are fixed
  mutable Mutex mutex_;
  ReplicaPlan plan_ WEFT_GUARDED_BY(mutex_);
  // The routes to replicas that were chosen.
  std::map<ReplicaPlan::Id, std::shared_ptr<Route>> routes_ WEFT_GUARDED_BY(mutex_);
  bool known_ WEFT_GUARDED_BY(mutex_) = false;  // names are known, or the resolver has failed
  bool resolving_ WEFT_GUARDED_BY(mutex_) = false;
  Clock::time_point queried_ WEFT_GUARDED_BY(mutex_){};  // the time of the last query
  // Counts queries; timers of earlier queries have no effect.
  std::uint64_t round_ WEFT_GUARDED_BY(mutex_) = 0;
  std::vector<Callback> waiting_ WEFT_GUARDED_BY(mutex_);
};

// The consequences of a call's result for its replica, and for further attempts.
struct WEFT_EXPORT CallVerdict {
  ReplicaPlan::Outcome outcome = ReplicaPlan::Outcome::good;
  bool elsewhere = false;  // another replica may be tried
  static CallVerdict of(const std::exception_ptr& error, bool idempotent);
};

// One call of a set, which tries replicas one after another. Start: (Peer, connect_within) -> Future<Value>.
template <class Value, class Start>
class BalancedCall final : public std::enable_shared_from_this<BalancedCall<Value, Start>> {
 public:
  BalancedCall(std::shared_ptr<PeerSetState> set, std::optional<std::uint64_t> key,
               std::optional<Clock::time_point> deadline, bool again, bool idempotent, bool wait_for_ready,
               Start start)
      : set_(std::move(set)),
        key_(key),
        deadline_(deadline),
        again_(again),
        idempotent_(idempotent),
        wait_for_ready_(wait_for_ready),
        start_(std::move(start)),
        promise_(set_->loop()) {}

  Future<Value> begin() {
    auto future = promise_.future();
    promise_.on_cancel([weak = this->weak_from_this()] {
      if (const auto self = weak.lock()) self->cancel();
    });
    set_->when_resolved([self = this->shared_from_this()] {
      if (self->stops_waiting()) self->attempt(nullptr);
    });
    if (deadline_ && !claimed_)
      set_->loop()->post([weak = this->weak_from_this(), loop = set_->loop(), when = *deadline_] {
        loop->schedule(when, [weak] {
          const auto self = weak.lock();
          if (self != nullptr && self->stops_waiting())
            self->end(ErrorKind::deadline_exceeded, std::string("the deadline has passed") + self->waits_);
        });
      });
    return future;
  }

 private:
  // Starts an attempt. last: the error of the previous replica; null: none.
  void attempt(const std::exception_ptr& last) {
    const auto chosen = set_->choose(key_, tried_);
    if (!chosen) return no_replica_left(last);
    tried_.push_back(chosen->choice.id);
    Future<Value> made;
    try {
      made = start_(chosen->peer.with(attempts_), set_->connect_within(deadline_, again_ ? chosen->left : 1));
    } catch (...) {  // an argument cannot be sent
      set_->finish(chosen->choice, ReplicaPlan::Outcome::unknown);
      return promise_.fail(std::current_exception());
    }
    std::move(made).then([self = this->shared_from_this(), choice = chosen->choice](Result<Value>&& result) {
      self->ended(choice, std::move(result));
    });
  }
  void ended(const ReplicaPlan::Choice& choice, Result<Value>&& result) {
    CallVerdict verdict;
    if (!result.ok()) verdict = CallVerdict::of(result.error(), idempotent_);
    set_->finish(choice, verdict.outcome);
    if (!verdict.elsewhere || !again_) return promise_.complete(std::move(result));
    attempts_.cancelled() ? end_after(result.error()) : attempt(result.error());
  }
  // The call was cancelled after an attempt had failed, and before the next attempt started.
  void end_after(const std::exception_ptr& failed) {
    const auto error = as_error(failed);
    if (!error) return promise_.fail(failed);
    promise_.fail(Error(ErrorKind::cancelled,
                        std::string("cancelled after a failed attempt: ") + error->what(),
                        error->execution()));
  }
  // No replica is left to try. last: the last error; null: no replica is known.
  void no_replica_left(const std::exception_ptr& last) {
    if (!wait_for_ready_ || (last != nullptr && !again_)) {
      if (last != nullptr) return promise_.fail(last);
      return end(ErrorKind::unavailable, "no replica is known: the set is empty, or its agent has shut down");
    }
    tried_.clear();
    waits_ = " while no replica could be reached";
    claimed_ = false;
    if (attempts_.cancelled()) return cancel();  // before claimed_ was set
    set_->pause().then([self = this->shared_from_this()](Result<void>&& paused) {
      if (!self->stops_waiting()) return;
      if (!paused.ok())
        return self->end(ErrorKind::shut_down, std::string("this agent has shut down") + self->waits_);
      if (self->deadline_ && self->set_->loop()->now() >= *self->deadline_)
        return self->end(ErrorKind::deadline_exceeded, std::string("the deadline has passed") + self->waits_);
      self->attempt(nullptr);
    });
  }
  void end(ErrorKind kind, const std::string& message) {
    promise_.fail(Error(kind, message, Execution::not_sent));
  }
  void cancel() {
    attempts_.cancel();
    if (stops_waiting()) end(ErrorKind::cancelled, std::string("cancelled") + waits_);
  }
  // While the call waits for names or in a pause: true for the first caller, which continues or ends the
  // call.
  bool stops_waiting() { return !claimed_.exchange(true); }

  const std::shared_ptr<PeerSetState> set_;
  const std::optional<std::uint64_t> key_;
  const std::optional<Clock::time_point> deadline_;
  const bool again_, idempotent_, wait_for_ready_;
  Start start_;
  Promise<Value> promise_;
  std::vector<ReplicaPlan::Id> tried_;
  const char* waits_ = " before a replica was known";  // constant while claimed_ is false
  std::atomic<bool> claimed_{false};                   // false: the call waits
  CancelScope attempts_;                               // of all attempts
};

// The type in which an argument is kept: text is stored as a std::string.
template <class Given>
using KeptArgument = std::conditional_t<std::is_convertible_v<std::decay_t<Given>, std::string_view>,
                                        std::string, std::decay_t<Given>>;

}  // namespace detail

class WEFT_EXPORT PeerSet {
 public:
  // Addresses or names of the replicas.
  using Names = detail::PeerSetState::Names;
  // Returns the addresses or names of the replicas. Called on a loop or on a calling thread; must not block.
  using Resolver = detail::PeerSetState::Resolver;

  // A set of the replicas with these names, or with the names that the resolver returns.
  PeerSet(const Agent& agent, const Names& names, PeerSetOptions options = {});
  PeerSet(const Agent& agent, Resolver resolver, PeerSetOptions options = {});

  // Return a handle for calls with a key, with options, with metadata, or on behalf of a served call. Options
  // and metadata are merged as for a Peer. The deadline applies to all attempts together. With
  // wait_for_ready, a call retries all replicas until one can be reached.
  PeerSet key(std::string_view key) const;
  PeerSet with(CallOptions options) const;
  PeerSet with_metadata(Metadata metadata) const;
  PeerSet with(CallContext& serving) const;

  // Calls a method, and returns a future of the result, as Peer::call. Do not pass Type.
  template <auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return balance<FoundMethod<Target>>(std::forward<Given>(given)...);
  }
  // For a method that T's service lists and T inherits, as Peer::call.
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return balance<FoundMethod<Target, Type, T>>(std::forward<Given>(given)...);
  }
  template <NamedFunction F, class... Given>
  auto call(Given&&... given) const {
    return balance<F>(std::forward<Given>(given)...);
  }

  void set(const Names& names) { state_->set(names); }  // known replicas keep their state
  std::vector<ReplicaPlan::Replica> replicas() const { return state_->replicas(); }  // a copy

 private:
  template <class Found, class... Given>
  auto balance(Given&&... given) const {
    using Method = typename Found::Type;
    using Value = typename Method::Traits::Result;
    constexpr bool again = (std::is_copy_constructible_v<detail::KeptArgument<Given>> && ...);
    const auto deadline =
        options_.timeout ? std::optional(later(state_->loop()->now(), *options_.timeout)) : std::nullopt;
    auto start = [deadline, loop = state_->loop(), options = options_, serving = serving_,
                  metadata = metadata_,
                  kept = std::tuple<detail::KeptArgument<Given>...>(std::forward<Given>(given)...)](
                     const Peer& replica, std::optional<std::chrono::nanoseconds> connect_within) mutable {
      CallOptions now = options;
      now.wait_for_ready = false;  // another replica may be ready
      now.fail_fast = true;
      if (!now.connect_within) now.connect_within = connect_within;
      if (deadline) now.timeout = *deadline - loop->now();
      if (!now.retry) now.retry = RetryPolicy{.attempts = 1};  // try another replica, not this one again
      Peer peer = replica.with(now).with_metadata(metadata);
      if (serving != nullptr) peer = peer.with(*serving);
      return std::apply(
          [&](auto&... argument) {
            if constexpr (again) {
              return peer.calls().template call<Found>(std::as_const(argument)...);
            } else {
              return peer.calls().template call<Found>(std::move(argument)...);
            }
          },
          kept);
    };
    return std::make_shared<detail::BalancedCall<Value, decltype(start)>>(
               state_, key_, deadline, again, Method::is_idempotent || options_.idempotent.value_or(false),
               options_.wait_for_ready.value_or(false), std::move(start))
        ->begin();
  }

  std::shared_ptr<detail::PeerSetState> state_;
  std::optional<std::uint64_t> key_;
  CallOptions options_;
  Metadata metadata_;
  std::shared_ptr<CallContext> serving_;
};

}  // namespace weft::rpc
