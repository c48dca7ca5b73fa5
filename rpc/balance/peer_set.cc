#include <weft/rpc/balance/peer_set.h>

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/transport/address.h>

#include <algorithm>

namespace weft::rpc {
namespace detail {
namespace {

constexpr auto pause_between_rounds = std::chrono::milliseconds{20};

}  // namespace

PeerSetState::PeerSetState(const std::shared_ptr<AgentCore>& core, PeerSetOptions options, Resolver resolver)
    : core_(core),
      loop_(core->pick_loop()),
      options_(options),
      resolver_(std::move(resolver)),
      plan_(options) {}

void PeerSetState::set(const Names& names) {
  std::vector<Callback> waiting;
  {
    MutexLock lock(mutex_);
    plan_.set(names);
    known_ = true;
    waiting.swap(waiting_);
  }
  for (auto& ready : waiting) ready();
}

void PeerSetState::when_resolved(Callback ready) {
  {
    MutexLock lock(mutex_);
    if (!known_) return waiting_.push_back(std::move(ready));
  }
  ready();
}

void PeerSetState::resolve() {
  {
    MutexLock lock(mutex_);
    if (resolving_) return;
    resolving_ = true;
    queried_ = loop_->now();
    ++round_;
  }
  auto asked = capture([&] { return resolver_(); });
  if (!asked.ok()) return resolved(asked.error());
  std::move(asked).get().then(while_alive(this, &PeerSetState::resolved));
}

// If the resolver fails, the set keeps the replicas that it knows.
void PeerSetState::resolved(Result<Names> names) {
  std::vector<Callback> waiting;
  bool failed = !names.ok();
  {
    MutexLock lock(mutex_);
    resolving_ = false;
    if (!failed) plan_.set(names.value());
    known_ = true;
    failed = failed || plan_.replicas().empty();
    waiting.swap(waiting_);
  }
  resolve_later(failed ? options_.soonest : options_.refresh);
  for (auto& ready : waiting) ready();
}

void PeerSetState::resolve_later(std::chrono::nanoseconds wait) {
  std::uint64_t round = 0;
  {
    MutexLock lock(mutex_);
    round = round_;
  }
  loop_->schedule_after(wait, while_alive(this, [round](PeerSetState& self) {
                          const auto core = self.core_.lock();
                          if (core == nullptr || core->ended()) return;
                          {
                            MutexLock lock(self.mutex_);
                            if (self.round_ != round) return;
                          }
                          self.resolve();
                        }));
}

// Queries the resolver after a failure: at once, or when `soonest` has passed since the last query.
void PeerSetState::resolve_soon() {
  if (!resolver_) return;
  std::chrono::nanoseconds wait{0};
  {
    MutexLock lock(mutex_);
    if (resolving_) return;
    wait = later(queried_, options_.soonest) - loop_->now();
  }
  if (wait.count() > 0) return resolve_later(wait);
  resolve();
}

std::optional<PeerSetState::Chosen> PeerSetState::choose(std::optional<std::uint64_t> key,
                                                         const std::vector<ReplicaPlan::Id>& but) {
  const auto core = core_.lock();
  if (core == nullptr) return std::nullopt;
  MutexLock lock(mutex_);
  const auto failing = check_routes();
  const auto choice = plan_.choose(loop_->now(), key, but);
  if (!choice) return std::nullopt;
  auto& route = routes_[choice->id];
  if (route == nullptr) {
    const std::string& name = plan_.find(choice->id)->name;
    route = Address::looks_like(name) ? core->routes().to_address(name) : core->routes().to_name(name);
  }
  const std::size_t all = plan_.replicas().size();
  Chosen chosen{*choice, Peer(core, route), all - std::min(but.size(), all - 1)};
  lock.unlock();
  for (const auto& again : failing) again->connect();
  return chosen;
}

std::vector<std::shared_ptr<Route>> PeerSetState::check_routes() {
  std::vector<std::shared_ptr<Route>> failing;
  std::erase_if(routes_, [this](const auto& known)
                             WEFT_REQUIRES(mutex_) { return plan_.find(known.first) == nullptr; });
  for (const auto& [id, route] : routes_) {
    const auto reach = route->reach();
    plan_.set_reach(id, reach == Route::Reach::failing      ? ReplicaPlan::Reach::failing
                        : reach == Route::Reach::connecting ? ReplicaPlan::Reach::connecting
                                                            : ReplicaPlan::Reach::ready);
    if (reach == Route::Reach::failing) failing.push_back(route);
  }
  return failing;
}

std::optional<std::chrono::nanoseconds> PeerSetState::connect_within(
    std::optional<Clock::time_point> deadline, std::size_t left) const {
  if (left <= 1) return std::nullopt;
  if (!deadline) return options_.connect_within;
  return std::min(options_.connect_within, (*deadline - loop_->now()) / static_cast<Clock::rep>(left));
}

void PeerSetState::finish(const Choice& choice, ReplicaPlan::Outcome outcome) {
  {
    MutexLock lock(mutex_);
    plan_.finish(choice, outcome, loop_->now());
  }
  if (outcome == ReplicaPlan::Outcome::failed) resolve_soon();
}

std::vector<ReplicaPlan::Replica> PeerSetState::replicas() const {
  MutexLock lock(mutex_);
  return plan_.replicas();
}

Future<void> PeerSetState::pause() {
  Promise<void> promise(loop_);
  auto future = promise.future();
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) {
    promise.fail(Error(ErrorKind::shut_down, "this agent has shut down"));
  } else {
    loop_->schedule_after(pause_between_rounds,
                          [promise = std::move(promise)]() mutable { promise.complete(Result<void>{}); });
  }
  return future;
}

CallVerdict CallVerdict::of(const std::exception_ptr& error, bool idempotent) {
  using Outcome = ReplicaPlan::Outcome;
  const auto known = as_error(error);
  if (!known) return {Outcome::unknown, false};
  const bool remote = is_remote(error), not_sent = known->execution() == Execution::not_sent;
  const bool harmless = not_sent || idempotent;
  switch (known->kind()) {
    case ErrorKind::unavailable:
    case ErrorKind::peer_lost:
    case ErrorKind::shut_down:
      // A remote error is a failure of this replica only if no handler ran: the error of a handler may
      // concern other agents.
      if (remote && !not_sent) return {Outcome::good, false};
      return {Outcome::failed, harmless};
    case ErrorKind::not_found:  // not remote: this agent does not know the peer; remote: no such method
      return remote ? CallVerdict{Outcome::good, false} : CallVerdict{Outcome::failed, harmless};
    case ErrorKind::resource_exhausted:  // the replica is alive, but overloaded
      return {remote ? Outcome::good : Outcome::unknown, remote && harmless};
    case ErrorKind::deadline_exceeded:
      return {remote ? Outcome::good : Outcome::failed, false};
    case ErrorKind::cancelled:
      return {Outcome::unknown, false};
    default:
      return {remote ? Outcome::good : Outcome::unknown, false};
  }
}

}  // namespace detail

PeerSet::PeerSet(const Agent& agent, const Names& names, PeerSetOptions options)
    : state_(std::make_shared<detail::PeerSetState>(agent.core(), options, nullptr)) {
  state_->set(names);
}

PeerSet::PeerSet(const Agent& agent, Resolver resolver, PeerSetOptions options)
    : state_(std::make_shared<detail::PeerSetState>(agent.core(), options, std::move(resolver))) {
  state_->resolve();
}

PeerSet PeerSet::key(std::string_view key) const {
  PeerSet set = *this;
  set.key_ = name_hash(key);
  return set;
}

PeerSet PeerSet::with(CallOptions options) const {
  PeerSet set = *this;
  set.options_.merge(options);
  return set;
}

PeerSet PeerSet::with_metadata(Metadata metadata) const {
  PeerSet set = *this;
  metadata.merge(set.metadata_);
  set.metadata_ = std::move(metadata);
  return set;
}

PeerSet PeerSet::with(CallContext& serving) const {
  PeerSet set = *this;
  set.serving_ = serving.shared_from_this();
  return set;
}

}  // namespace weft::rpc
