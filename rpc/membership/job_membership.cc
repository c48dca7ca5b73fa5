#include <weft/rpc/membership/job_membership.h>

#include <weft/rpc/core/when_all.h>
#include <weft/rpc/transport/local_address.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

constexpr auto reach_patience = std::chrono::minutes{5};
constexpr auto retry_interval = std::chrono::milliseconds{100};
// A member that waits for the host looks up this often whether it should stop.
constexpr auto host_patience = std::chrono::seconds{1};
// How long a member that does not answer may keep the host from ending the job.
constexpr auto tell_patience = std::chrono::seconds{1};

Error loss_of(const std::string& name, const std::string& reason) {
  return Error(ErrorKind::peer_lost, name + " was lost: " + reason);
}

Error ended() { return Error(ErrorKind::shut_down, "this agent has shut down"); }

// What a failed future carries, as an Error.
Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return own;
  } catch (const std::exception& other) {
    return Error(ErrorKind::internal, other.what());
  }
}

}  // namespace

JobMembership::JobMembership(std::shared_ptr<AgentCore> core, Rendezvous rendezvous, Place place)
    : core_(std::move(core)),
      rendezvous_(std::move(rendezvous)),
      place_(std::move(place)),
      loop_(core_->pick_loop()) {}

Member JobMembership::self(MemberState state) const {
  std::lock_guard lock(mutex_);
  return {core_->id().name, core_->id().incarnation, rendezvous_.rank, state, addresses_};
}

std::vector<std::string> JobMembership::published_addresses() const {
  std::vector<std::string> published;
  for (const std::string& text : core_->addresses()) {
    Address address = Address::parse(text);
    // Peers cannot use "every address of this host": they get the one that leads to the store, and the host's
    // own is the store's.
    if (address.scheme == "tcp" && is_wildcard(address.host)) {
      const std::string store =
          place_.with_host ? Address::parse(rendezvous_.store).host : "192.0.2.1";  // no host's
      address.host =
          is_host() && place_.with_host && !is_wildcard(store) ? store : local_address_towards(store);
    }
    published.push_back(address.text());
  }
  return published;
}

// --- Joining ---

Task<void> JobMembership::join(std::shared_ptr<JobMembership> self) {
  {
    auto addresses = self->published_addresses();
    std::lock_guard lock(self->mutex_);
    self->addresses_ = std::move(addresses);
  }
  co_await take_name(self);
  if (self->rendezvous_.fixed_world) co_await take_rank(self);
  if (self->is_host()) {
    co_await self->place_.store->set(std::string(membership_keys::host), self->core_->id().name);
  } else {
    co_await meet_host(self);
  }
  co_await self->place_.store->set(self->member_key(self->core_->id().name),
                                   to_record(self->self(MemberState::joined)));
}

Task<void> JobMembership::take_name(std::shared_ptr<JobMembership> self) {
  const std::string name = self->core_->id().name;
  const std::string record = to_record(self->self(MemberState::claimed));
  std::optional<std::string> expected;
  for (;;) {
    const StoreExchange taken = co_await exchange(self, self->member_key(name), expected, record);
    if (taken.stored) co_return;
    const Member other = from_record(name, taken.actual.value_or(""));
    if (self->rendezvous_.fixed_world || other.here())
      throw Error(
          ErrorKind::already_exists,
          "'" + name + "' has joined this job already, as " + to_string(other.id()) +
              (other.here() ? "" : ", and has left: a world of fixed size takes nobody back") +
              (self->place_.discard ? " (if " + self->rendezvous_.store + " is of an earlier job, remove it)"
                                    : ""));
    expected = taken.actual;  // an earlier life of this name is over
  }
}

Task<void> JobMembership::take_rank(std::shared_ptr<JobMembership> self) {
  const std::string rank = std::to_string(self->rendezvous_.rank);
  const StoreExchange taken = co_await exchange(self, std::string(membership_keys::ranks) + rank,
                                                std::nullopt, self->core_->id().name);
  if (taken.stored) co_return;
  co_await self->place_.store->remove(self->member_key(self->core_->id().name));  // its end is nobody's loss
  throw Error(ErrorKind::already_exists,
              "rank " + rank + " of this job is taken by '" + taken.actual.value_or("") + "'");
}

Task<void> JobMembership::meet_host(std::shared_ptr<JobMembership> self) {
  std::string name;
  while (name.empty()) {
    try {
      name =
          co_await self->place_.store->get(std::string(membership_keys::host), {.deadline = host_patience});
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::deadline_exceeded || self->stopping()) throw;
    }
  }
  const Member host = from_record(name, co_await self->place_.store->get(self->member_key(name)));
  {
    std::lock_guard lock(self->mutex_);
    self->host_ = host;
  }
  // From here on there is a connection, by which each notices the other's end.
  const Peer peer(self->core_, self->core_->route(name, host.addresses));
  try {
    co_await peer.call<&MembershipService::attend>();
  } catch (const RemoteError& remote) {
    throw Error(remote.kind(), remote.detail());
  }
}

// compare_set, tried again while the store cannot be reached: agents of a job start in any order.
Task<StoreExchange> JobMembership::exchange(std::shared_ptr<JobMembership> self, std::string key,
                                            std::optional<std::string> expected, std::string value) {
  const auto until = Clock::now() + reach_patience;
  std::optional<StoreExchange> done;
  while (!done) {
    try {
      done = co_await self->place_.store->compare_set(key, expected, value);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unavailable || self->stopping() || Clock::now() >= until) throw;
    }
    if (!done) co_await self->pause();
  }
  co_return std::move(*done);
}

Future<void> JobMembership::pause() {
  auto promise = std::make_shared<Promise<void>>();
  auto future = promise->future();
  std::unique_lock lock(mutex_);
  if (stop_joining_ || phase_ == Phase::ended) {
    lock.unlock();
    promise->complete(Result<void>{});
    return future;
  }
  pause_ = std::move(promise);
  lock.unlock();
  loop_->post([loop = loop_.get(), weak = weak_from_this()] {
    loop->schedule(loop->now() + retry_interval, [weak] {
      if (const auto job = weak.lock()) job->end_pause();
    });
  });
  return future;
}

void JobMembership::end_pause() {
  std::shared_ptr<Promise<void>> promise;
  {
    std::lock_guard lock(mutex_);
    promise = std::exchange(pause_, nullptr);
  }
  if (promise != nullptr) promise->complete(Result<void>{});
}

bool JobMembership::stopping() const {
  std::lock_guard lock(mutex_);
  return stop_joining_ || phase_ == Phase::ended;
}

void JobMembership::joined(Result<void>&& result) {
  std::vector<std::shared_ptr<Promise<void>>> leavers;
  {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::joining) phase_ = result.ok() ? Phase::joined : Phase::apart;
    if (!result.ok()) join_error_ = result.error();
    state_ = MemberState::joined;
    leavers = std::exchange(leavers_, {});
  }
  if (!result.ok()) {
    const Error error = error_of(result.error());
    if (error.kind() == ErrorKind::peer_lost && rendezvous_.fixed_world)
      fail(error);  // this job has no future
    fail_waiters(error);
    for (const auto& leaver : leavers) leaver->complete(Result<void>{});  // never was a member
    return;
  }
  publish_state();
  watch();
  for (auto& leaver : leavers) publish_left(std::move(leaver));
}

// --- Waiting ---

Future<void> JobMembership::wait_for(std::size_t agents) {
  if (rendezvous_.fixed_world && agents > rendezvous_.world_size)
    return Future<void>::made(std::make_exception_ptr(
        Error(ErrorKind::invalid_argument, "a world of " + std::to_string(rendezvous_.world_size) +
                                               " never has " + std::to_string(agents) + " agents")));
  return add_waiter(std::max<std::size_t>(agents, 1));
}

Future<void> JobMembership::others_left() { return add_waiter(0); }

Future<void> JobMembership::add_waiter(std::size_t agents) {
  auto promise = std::make_shared<Promise<void>>(loop_);
  std::unique_lock lock(mutex_);
  const std::uint64_t id = ++last_waiter_;
  promise->on_cancel([weak = weak_from_this(), id] {
    if (const auto job = weak.lock()) job->cancel_waiter(id);
  });
  auto future = promise->future();
  std::exception_ptr error;
  if (phase_ == Phase::ended) {
    error = std::make_exception_ptr(ended());
  } else if (failure_) {
    error = std::make_exception_ptr(*failure_);
  } else if (join_error_ != nullptr) {
    error = join_error_;
  } else if (phase_ == Phase::left) {
    error = std::make_exception_ptr(Error(ErrorKind::failed_precondition, "this agent has left its job"));
  }
  if (error != nullptr) {
    lock.unlock();
    promise->fail(error);
    return future;
  }
  waiters_.emplace(id, Waiter{agents, std::move(promise)});
  const bool first = phase_ == Phase::apart;
  const bool gone = store_gone_;
  if (first) phase_ = Phase::joining;
  lock.unlock();
  if (first) {
    join(shared_from_this())
        .start(core_->handlers())
        .then([self = shared_from_this()](Result<void>&& result) { self->joined(std::move(result)); });
  } else if (gone) {
    store_is_gone();
  } else {
    publish_state();
    answer_waiters();
    watch();
  }
  return future;
}

void JobMembership::cancel_waiter(std::uint64_t id) {
  std::shared_ptr<Promise<void>> promise;
  Future<bool> watch;
  {
    std::lock_guard lock(mutex_);
    const auto found = waiters_.find(id);
    if (found == waiters_.end()) return;
    promise = std::move(found->second.promise);
    waiters_.erase(found);
    if (waiters_.empty())
      watch = std::move(watch_);  // a call under way, which would keep the agent from draining
  }
  watch.cancel();
  publish_state();
  promise->fail(Error(ErrorKind::cancelled, "the wait was cancelled"));
}

// Tells the others whether this member only serves. One change at a time; none once it has left: then the
// record is no longer what is expected.
void JobMembership::publish_state() {
  MemberState before{}, after{};
  {
    std::lock_guard lock(mutex_);
    const bool serves =
        std::any_of(waiters_.begin(), waiters_.end(), [](const auto& w) { return w.second.agents == 0; });
    before = state_;
    after = serves ? MemberState::serving : MemberState::joined;
    if (phase_ != Phase::joined || store_gone_ || publishing_ || before == after) return;
    publishing_ = true;
    state_ = after;
  }
  place_.store->compare_set(member_key(core_->id().name), to_record(self(before)), to_record(self(after)))
      .then([weak = weak_from_this()](Result<StoreExchange>&& result) {
        const auto job = weak.lock();
        if (job == nullptr) return;
        {
          std::lock_guard lock(job->mutex_);
          job->publishing_ = false;
        }
        if (result.ok() && result.value().stored) job->publish_state();
      });
}

// Looks at the members, and again at every change, while somebody waits.
void JobMembership::watch() {
  std::uint64_t turn = 0, after = 0;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::joined || watching_ || waiters_.empty()) return;
    watching_ = true;
    turn = ++turn_;
    after = version_;
  }
  auto watch = place_.store->watch(std::string(membership_keys::members), after)
                   .then([weak = weak_from_this()](Result<StoreChanges>&& changes) {
                     if (const auto job = weak.lock()) job->viewed(std::move(changes));
                     return true;
                   });
  {
    std::lock_guard lock(mutex_);
    if (turn_ == turn && watching_ && !waiters_.empty()) {
      watch_ = std::move(watch);
      return;
    }
  }
  watch.cancel();  // answered already, or nobody waits any more
}

void JobMembership::viewed(Result<StoreChanges>&& result) {
  std::optional<Error> error;
  try {
    const StoreChanges changes = std::move(result).get();
    StoreView seen;
    {
      std::lock_guard lock(mutex_);
      seen = seen_;
    }
    changes.apply_to(seen.entries);
    seen.version = changes.version;
    Roster roster(seen);
    // Routes learn which life of a peer its name stands for.
    for (const auto& [name, member] : roster.members())
      if (member.state == MemberState::joined && name != core_->id().name)
        core_->route(name)->identify(member.id());
    std::lock_guard lock(mutex_);
    watching_ = false;
    version_ = seen.version;
    seen_ = std::move(seen);
    roster_ = std::move(roster);
  } catch (...) {
    error = error_of(std::current_exception());
    std::lock_guard lock(mutex_);
    watching_ = false;
  }
  const bool of_host = error && place_.with_host && !is_host();
  if (of_host && error->kind() == ErrorKind::shut_down) return store_is_gone();
  // What a lost connection means is for peer_gone to say; where another still stands, the watch goes on over
  // that.
  const bool again = of_host && error->kind() == ErrorKind::peer_lost;
  if (error && !again && error->kind() != ErrorKind::cancelled) return fail_waiters(*error);
  answer_waiters();
  watch();
}

std::vector<std::string> JobMembership::awaited() const {
  return roster_.awaited_by(core_->id().name, is_host());
}

void JobMembership::answer_waiters() {
  std::vector<Waiter> answered;
  {
    std::lock_guard lock(mutex_);
    if (version_ == 0) return;
    const std::size_t world = rendezvous_.fixed_world ? rendezvous_.world_size : 0;
    for (auto i = waiters_.begin(); i != waiters_.end();) {
      const std::size_t agents = i->second.agents;
      const bool come =
          agents == 0 ? roster_.joined() >= world && awaited().empty() : roster_.joined() >= agents;
      if (come) answered.push_back(std::move(i->second));
      i = come ? waiters_.erase(i) : std::next(i);
    }
  }
  for (auto& waiter : answered) {
    if (waiter.agents == 0) {
      publish_left(std::move(waiter.promise));
    } else {
      waiter.promise->complete(Result<void>{});
    }
  }
}

void JobMembership::fail_waiters(const Error& error) {
  std::map<std::uint64_t, Waiter> waiters;
  Future<bool> watch;
  {
    std::lock_guard lock(mutex_);
    waiters.swap(waiters_);
    watch = std::move(watch_);
  }
  watch.cancel();
  for (auto& [id, waiter] : waiters) waiter.promise->fail(error);
}

// The host has left in good order, and the store with it: nobody learns any more who joins or leaves.
void JobMembership::store_is_gone() {
  std::string who;
  {
    std::lock_guard lock(mutex_);
    store_gone_ = true;
    for (const std::string& name : awaited())
      if (!host_ || name != host_->name) who += (who.empty() ? "" : ", ") + name;
    who = "'" + (host_ ? host_->name : rendezvous_.store) + "' keeps this job's store and has left" +
          (who.empty() ? "" : " before " + who) + ": it should serve until the others have left";
  }
  answer_waiters();
  fail_waiters(Error(ErrorKind::unavailable, who));
}

void JobMembership::find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
  const auto addresses = [](const Member& member) {
    std::vector<Address> parsed;
    if (member.here())
      for (const std::string& text : member.addresses) parsed.push_back(Address::parse(text));
    return parsed;
  };
  std::optional<Member> known;
  {
    std::lock_guard lock(mutex_);
    if (const Member* member = roster_.find(name)) known = *member;
    if (host_ && host_->name == name) known = host_;
  }
  if (known) return done(addresses(*known));
  place_.store->try_get(member_key(name))
      .then([name, addresses, done = std::move(done)](Result<std::optional<std::string>>&& record) mutable {
        auto found = capture([&] {
          const auto text = std::move(record).get();
          return text ? addresses(from_record(name, *text)) : std::vector<Address>{};
        });
        done(found.ok() ? std::move(found).get() : std::vector<Address>{});
      });
}

// --- Ends ---

Future<void> JobMembership::leave() {
  auto promise = std::make_shared<Promise<void>>(loop_);
  auto future = promise->future();
  std::unique_lock lock(mutex_);
  switch (phase_) {
    case Phase::joined: {
      lock.unlock();
      publish_left(std::move(promise));
      break;
    }
    case Phase::joining:
      stop_joining_ = true;
      leavers_.push_back(std::move(promise));
      lock.unlock();
      end_pause();
      break;
    default:
      if (phase_ == Phase::apart) phase_ = Phase::left;
      lock.unlock();
      promise->complete(Result<void>{});
  }
  return future;
}

void JobMembership::publish_left(std::shared_ptr<Promise<void>> done) {
  std::optional<Error> failure;
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    failure = failure_;
    gone = store_gone_ || phase_ != Phase::joined;
    if (phase_ == Phase::joined) phase_ = Phase::left;
  }
  fail_waiters(Error(ErrorKind::shut_down, "this agent leaves its job"));
  if (failure) return done->fail(*failure);
  if (gone) return done->complete(Result<void>{});
  place_.store->set(member_key(core_->id().name), to_record(self(MemberState::left)))
      .then([self = shared_from_this(), done](Result<void>&& set) {
        if (!set.ok()) {
          // A host that has left takes no notice of who leaves after it.
          bool host_left = self->place_.with_host && error_of(set.error()).kind() == ErrorKind::shut_down;
          {
            std::lock_guard lock(self->mutex_);
            host_left = host_left || self->store_gone_;
          }
          if (!host_left) return done->complete(std::move(set));
        }
        if (self->is_host() && self->place_.with_host) self->place_.close();
        if (!self->place_.discard) return done->complete(Result<void>{});
        // The last one removes the file.
        self->place_.store->list(std::string(membership_keys::members))
            .then([self, done](Result<StoreView>&& view) {
              const Result<void> removed = capture([&] {
                const Roster roster(std::move(view).get());
                if (roster.joined() >= self->rendezvous_.world_size &&
                    roster.awaited_by(self->core_->id().name, true).empty())
                  self->place_.discard();
              });
              if (!removed.ok()) self->core_->log(LogLevel::warning, error_of(removed.error()).what());
              done->complete(Result<void>{});
            });
      });
}

void JobMembership::shut_down() {
  std::vector<std::shared_ptr<Promise<void>>> leavers;
  bool left = false;
  {
    std::lock_guard lock(mutex_);
    left = phase_ == Phase::left;
    phase_ = Phase::ended;
    leavers.swap(leavers_);
  }
  fail_waiters(ended());
  for (const auto& leaver : leavers) leaver->fail(ended());
  // A host that ends without having left is lost to the others: its store does not answer them as one that
  // has closed, their connections end.
  if (place_.close && (left || !place_.with_host)) place_.close();
  end_pause();
}

void JobMembership::peer_gone(const AgentId& peer, const Error& reason) {
  {
    std::unique_lock lock(mutex_);
    if (failure_ || phase_ == Phase::ended) return;
    if (!is_host() && host_ && host_->id() == peer && place_.with_host &&
        reason.kind() == ErrorKind::shut_down)
      store_gone_ = true;  // of interest also to who is just leaving
    if (phase_ == Phase::left) return;
    if (!is_host()) {
      if (!host_ || host_->id() != peer) return;
      lock.unlock();
      // Only the store could say that it has left; but who leaves says goodbye.
      if (reason.kind() != ErrorKind::shut_down) {
        if (rendezvous_.fixed_world) fail(loss_of(peer.name, reason.what()));
      } else if (place_.with_host) {
        store_is_gone();
      }
      return;
    }
  }
  place_.store->list(std::string(membership_keys::members))
      .then([weak = weak_from_this(), peer, reason](Result<StoreView>&& view) {
        const auto job = weak.lock();
        if (job == nullptr || !view.ok()) return;
        try {
          job->judge(peer, reason, Roster(view.value()));
        } catch (const Error& bad) {
          job->core_->log(LogLevel::error, bad.what());
        }
      });
}

// On the host: was that a loss?
void JobMembership::judge(const AgentId& gone, const Error& reason, const Roster& roster) {
  const Member* member = roster.find(gone.name);
  if (member == nullptr || member->id() != gone || !member->here()) return;
  if (rendezvous_.fixed_world) return announce_loss(*member, reason, roster);
  core_->log(LogLevel::warning, loss_of(gone.name, reason.what()).what());
  Member lost = *member;
  lost.state = MemberState::lost;
  place_.store->compare_set(member_key(gone.name), to_record(*member), to_record(lost)).then([](auto&&) {});
}

void JobMembership::announce_loss(const Member& lost, const Error& reason, const Roster& roster) {
  const Error error = loss_of(lost.name, reason.what());
  {
    std::lock_guard lock(mutex_);
    if (failure_ || phase_ == Phase::left || phase_ == Phase::ended) return;
    failure_ = error;
  }
  // The others first: once the world has failed here, no call goes out any more.
  std::vector<Future<void>> told;
  for (const auto& [name, member] : roster.members())
    if (member.here() && name != lost.name && name != core_->id().name)
      told.push_back(Peer(core_, core_->route(name))
                         .with(CallOptions{.deadline = tell_patience})
                         .call<&MembershipService::lost>(lost.name, std::string(reason.what())));
  when_all(std::move(told)).then([self = shared_from_this(), error](auto&&) { self->fail(error); });
}

void JobMembership::attend() const {
  std::lock_guard lock(mutex_);
  if (failure_) throw *failure_;
  if (!is_host())
    throw Error(ErrorKind::failed_precondition, "'" + core_->id().name + "' does not host this job");
}

void JobMembership::told_of_loss(const AgentId& teller, const std::string& name, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (!host_ || host_->id() != teller)
      throw Error(ErrorKind::permission_denied, "'" + teller.name + "' does not host this job");
    if (phase_ == Phase::left || phase_ == Phase::ended) return;
  }
  fail(loss_of(name, reason));
}

void JobMembership::fail(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
  }
  core_->fail_world(error);
  fail_waiters(error);
}

}  // namespace weft::rpc::detail
