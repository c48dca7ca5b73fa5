// PeerSet: several peers that serve the same, called as if they were one.
//
//   rpc::PeerSet markets{agent, {"tcp://a:7443", "tcp://b:7443"}, {.policy =
//   rpc::BalancePolicy::round_robin}}; auto quote = co_await markets.call<&Market::last>("ACME"); auto mine =
//   co_await markets.key("ACME").call<&Market::last>("ACME");   // consistent_hash
//
// A call that its replica never got goes on to another; one that may have run does only where its method is
// idempotent. Each replica is tried once. Arguments are kept meanwhile, so they are copyable, or there is one
// try. What counts as a replica's failure: that it cannot be reached, is lost or shutting down, or that the
// deadline passed; errors of its handlers do not. Connected replicas are preferred, and those that cannot be
// reached are connected again without a call. Copyable and cheap; copies share what is known of the replicas.
// Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/balance/replica_plan.h>

namespace weft::rpc {

// How a set selects and drops replicas.
struct PeerSetOptions {
  BalancePolicy policy = BalancePolicy::round_robin;
  double max_load = 1.25;  // as BalanceOptions says, like the next
  EjectionOptions ejection;
  // How often the resolver is asked anew. It is also asked when a replica fails, though not more often than
  // `soonest`.
  std::chrono::nanoseconds refresh = std::chrono::seconds{30};
  std::chrono::nanoseconds soonest = std::chrono::seconds{1};
  // How long a call waits for the connection to one replica while others are left to try; less where its
  // deadline is near: an equal share of the time that is left. CallOptions::connect_within says otherwise.
  std::chrono::nanoseconds connect_within = std::chrono::seconds{1};
};

namespace detail {

// What the copies of a PeerSet share.
class WEFT_EXPORT PeerSetState final : public std::enable_shared_from_this<PeerSetState> {
 public:
  using Names = std::vector<std::string>;
  using Resolver = std::function<Future<Names>()>;
  using Choice = ReplicaPlan::Choice;
  struct Chosen {
    Choice choice;
    Peer peer;
    std::size_t left = 1;  // replicas that were not tried, this one included
  };
  using Ready = UniqueFunction<void()>;

  PeerSetState(std::shared_ptr<AgentCore> core, PeerSetOptions options, Resolver resolver);
  const std::shared_ptr<Loop>& loop() const { return loop_; }

  void set(const Names& names);
  void resolve();
  // Runs it once the first names are known: at once, mostly.
  void when_resolved(Ready ready);
  // Nothing: no replica is left.
  std::optional<Chosen> choose(std::optional<std::uint64_t> key, const std::vector<ReplicaPlan::Id>& but);
  void finish(const Choice& choice, ReplicaPlan::Outcome outcome);
  std::vector<ReplicaPlan::Replica> replicas() const;
  // Of an attempt at a replica; none: until the deadline.
  std::optional<std::chrono::nanoseconds> connect_within(std::optional<Clock::time_point> deadline,
                                                         std::size_t left) const;
  Future<void> pause();  // before a call tries all replicas again; its cancellation ends it

 private:
  void resolved(Result<Names> names);
  void resolve_later(std::chrono::nanoseconds wait);
  void resolve_soon();
  // Under the mutex. The routes to connect again, without it.
  std::vector<std::shared_ptr<Route>> look_at_routes();

  const std::weak_ptr<AgentCore> core_;
  const std::shared_ptr<Loop> loop_;
  const PeerSetOptions options_;
  const Resolver resolver_;   // null: the names are fixed
  mutable std::mutex mutex_;  // guards what follows
  ReplicaPlan plan_;
  std::map<ReplicaPlan::Id, std::shared_ptr<Route>> routes_;  // of replicas that were chosen
  bool known_ = false;                                        // the names are known, or the resolver failed
  bool resolving_ = false;
  Clock::time_point asked_{};  // when the resolver was asked last
  std::uint64_t round_ = 0;    // of resolving: a timer of an earlier one does nothing
  std::vector<Ready> waiting_;
};

// How a call ended, as far as its replica and the calls to others are concerned.
struct WEFT_EXPORT CallVerdict {
  ReplicaPlan::Outcome outcome = ReplicaPlan::Outcome::good;
  bool elsewhere = false;  // another replica may be tried
  static CallVerdict of(const std::exception_ptr& error, bool idempotent);
};

// The attempts of one call, of which one is reported after another has begun where threads race. cancel()
// reaches the latest. Thread-safe.
class WEFT_EXPORT LatestAttempt {
 public:
  std::uint64_t begin();                              // its number
  void set(std::uint64_t number, Future<void> work);  // ignored where a later one has begun
  void cancel();                                      // the latest, and all that begin from here on
  bool cancelled() const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t latest_ = 0;
  bool cancelled_ = false;
  std::shared_ptr<Future<void>> work_;  // its end may come back here: cancelled without the mutex
};

// One call, from replica to replica. `start`: (Peer, connect_within) -> Future<Value>.
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
      if (!self->begun_.exchange(true)) self->attempt(nullptr);
    });
    if (deadline_ && !begun_)
      set_->loop()->post([weak = this->weak_from_this(), loop = set_->loop(), when = *deadline_] {
        loop->schedule(when, [weak] {
          const auto self = weak.lock();
          if (self != nullptr && !self->begun_.exchange(true))
            self->end(ErrorKind::deadline_exceeded, "the deadline has passed before a replica was known");
        });
      });
    return future;
  }

 private:
  // last: what the replica before this one failed with.
  void attempt(const std::exception_ptr& last) {
    const auto chosen = set_->choose(key_, tried_);
    if (!chosen) return nobody_left(last);
    tried_.push_back(chosen->choice.id);
    const std::uint64_t number = latest_.begin();
    Future<Value> made;
    try {
      made = start_(chosen->peer, set_->connect_within(deadline_, again_ ? chosen->left : 1));
    } catch (...) {  // its arguments do not travel
      set_->finish(chosen->choice, ReplicaPlan::Outcome::unknown);
      return promise_.fail(std::current_exception());
    }
    latest_.set(number, std::move(made).then([self = this->shared_from_this(), choice = chosen->choice](
                                                 Result<Value>&& result) -> Result<void> {
      self->ended(choice, std::move(result));
      return {};
    }));
  }
  void ended(const ReplicaPlan::Choice& choice, Result<Value>&& result) {
    CallVerdict verdict;
    if (!result.ok()) verdict = CallVerdict::of(result.error(), idempotent_);
    set_->finish(choice, verdict.outcome);
    if (!verdict.elsewhere || !again_) return promise_.complete(std::move(result));
    latest_.cancelled() ? end_after(result.error()) : attempt(result.error());
  }
  // Cancelled when an attempt had failed already, and before the next one began.
  void end_after(const std::exception_ptr& failed) {
    try {
      std::rethrow_exception(failed);
    } catch (const Error& error) {
      promise_.fail(Error(ErrorKind::cancelled,
                          std::string("cancelled after a failed attempt: ") + error.what(),
                          error.execution()));
    } catch (...) {
      promise_.fail(std::current_exception());
    }
  }
  // Every replica has failed with `last`; null: no replica is known.
  void nobody_left(const std::exception_ptr& last) {
    if (!wait_for_ready_ || (last != nullptr && !again_)) {
      if (last != nullptr) return promise_.fail(last);
      return end(ErrorKind::unavailable, "no replica is known");
    }
    tried_.clear();
    const std::uint64_t number = latest_.begin();
    latest_.set(number, set_->pause().then([self = this->shared_from_this()](Result<void>&&) -> Result<void> {
      if (self->latest_.cancelled()) {
        self->end(ErrorKind::cancelled, "cancelled while no replica could be reached");
      } else if (self->deadline_ && self->set_->loop()->now() >= *self->deadline_) {
        self->end(ErrorKind::deadline_exceeded, "the deadline has passed while no replica could be reached");
      } else {
        self->attempt(nullptr);
      }
      return {};
    }));
  }
  void end(ErrorKind kind, const std::string& message) {
    promise_.fail(Error(kind, message, Execution::not_sent));
  }
  void cancel() {
    latest_.cancel();
    if (!begun_.exchange(true)) end(ErrorKind::cancelled, "cancelled before a replica was known");
  }

  const std::shared_ptr<PeerSetState> set_;
  const std::optional<std::uint64_t> key_;
  const std::optional<Clock::time_point> deadline_;
  const bool again_, idempotent_, wait_for_ready_;
  Start start_;
  Promise<Value> promise_;
  std::vector<ReplicaPlan::Id> tried_;
  std::atomic<bool> begun_{false};
  LatestAttempt latest_;
};

// Text is kept, not pointed to.
template <class Given>
using Kept = std::conditional_t<std::is_convertible_v<std::decay_t<Given>, std::string_view>, std::string,
                                std::decay_t<Given>>;

}  // namespace detail

class WEFT_EXPORT PeerSet {
 public:
  // Addresses or names of the replicas.
  using Names = detail::PeerSetState::Names;
  // Tells the replicas' addresses or names. Called on a loop or on a thread that calls; must not block.
  using Resolver = detail::PeerSetState::Resolver;

  // The replicas with these names, or with those that the resolver returns.
  PeerSet(Agent& agent, const Names& names, PeerSetOptions options = {});
  PeerSet(Agent& agent, Resolver resolver, PeerSetOptions options = {});

  // Handles whose calls have a key, have options or metadata, which merge as those of a Peer, or are made in
  // the name of a call that is being served. The deadline is that of all tries together. With wait_for_ready
  // a call tries all replicas again and again while none can be reached.
  PeerSet key(std::string_view key) const;
  PeerSet with(CallOptions options) const;
  PeerSet with_metadata(Metadata metadata) const;
  PeerSet with(CallContext& serving) const;

  // An eager future of the result, as Peer::call. (Type is never given.)
  template <auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return balance<typename Peer::FoundMethod<Target>::Type>(
        [](const Peer& peer, auto&&... arguments) {
          return peer.call<Target>(std::forward<decltype(arguments)>(arguments)...);
        },
        std::forward<Given>(given)...);
  }
  // A method that T's service lists and T inherits, as Peer::call.
  template <Served T, auto Target, class... Given, class Type = decltype(Target)>
  auto call(Given&&... given) const {
    return balance<typename Peer::FoundMethod<Target, Type, T>::Type>(
        [](const Peer& peer, auto&&... arguments) {
          return peer.call<T, Target>(std::forward<decltype(arguments)>(arguments)...);
        },
        std::forward<Given>(given)...);
  }
  template <NamedFunction F, class... Given>
  auto call(Given&&... given) const {
    return balance<F>(
        [](const Peer& peer, auto&&... arguments) {
          return peer.call<F>(std::forward<decltype(arguments)>(arguments)...);
        },
        std::forward<Given>(given)...);
  }

  void set(const Names& names) { state_->set(names); }  // other replicas; those that stay keep their state
  std::vector<ReplicaPlan::Replica> replicas() const { return state_->replicas(); }  // a copy

 private:
  template <class M, class Call, class... Given>
  auto balance(Call call, Given&&... given) const {
    using Value = typename M::Traits::Result;
    constexpr bool again = (std::is_copy_constructible_v<detail::Kept<Given>> && ...);
    const auto deadline =
        options_.timeout ? std::optional(later(state_->loop()->now(), *options_.timeout)) : std::nullopt;
    auto start = [call, deadline, loop = state_->loop(), options = options_, serving = serving_,
                  metadata = metadata_,
                  kept = std::tuple<detail::Kept<Given>...>(std::forward<Given>(given)...)](
                     const Peer& replica, std::optional<std::chrono::nanoseconds> connect_within) mutable {
      CallOptions now = options;
      now.wait_for_ready = false;  // another replica may be ready
      if (!now.connect_within) now.connect_within = connect_within;
      if (deadline) now.timeout = *deadline - loop->now();
      if (!now.retry) now.retry = RetryPolicy{.attempts = 1};  // another replica, rather than this one again
      Peer peer = replica.with(now).with_metadata(metadata);
      if (serving != nullptr) peer = peer.with(*serving);
      return std::apply(
          [&](auto&... argument) {
            if constexpr (again) {
              return call(peer, std::as_const(argument)...);
            } else {
              return call(peer, std::move(argument)...);
            }
          },
          kept);
    };
    return std::make_shared<detail::BalancedCall<Value, decltype(start)>>(
               state_, key_, deadline, again, M::is_idempotent || options_.idempotent.value_or(false),
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
