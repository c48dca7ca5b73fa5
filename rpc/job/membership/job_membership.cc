// A member keeps a roster of all members' records. look() watches the records in the store; looked() applies
// the changes, and answer() completes the calls that they satisfy (wait_for, others_left, watches); then the
// next look starts. not_seen() handles a look that fails. A fixed world fails if one of its members is lost.
//
// A member publishes its own record under its lease: publish_state() announces that it only serves, or has
// released what it holds; job_membership_ends.cc announces that it has left.
#include <weft/rpc/job/membership/job_membership.h>

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/while_alive.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

// The timeout of one look at the members. After it, the member checks whether the agent drains.
constexpr auto look_timeout = std::chrono::seconds{5};
// How long a member that has released waits for the others to release. Members of earlier versions of weft
// never publish this state.
constexpr auto release_timeout = std::chrono::seconds{10};
// After a change, a member of a job of n members looks again after n times this pause, at most store_pause.
// While members join one after the other, each look then reports several of them. The store's keeper would
// send O(n) reports to each of n members if each looked again at once.
constexpr auto pause_per_member = std::chrono::microseconds{250};
constexpr std::size_t max_named_ranks = 16;  // in an error

}  // namespace

Error loss_of(const std::string& name, const std::string& reason) {
  return Error(ErrorKind::peer_lost, name + " was lost: " + reason);
}

Error job_ended() { return Error(ErrorKind::shut_down, "this agent has shut down"); }

bool is_outage(const Error& error) {
  return error.kind() == ErrorKind::unavailable || error.kind() == ErrorKind::deadline_exceeded;
}

JobMembership::JobMembership(std::shared_ptr<AgentCore> core, Rendezvous rendezvous, StoreAccess access)
    : core_(std::move(core)),
      rendezvous_(std::move(rendezvous)),
      access_(std::move(access)),
      loop_(core_->pick_loop()),
      leader_(std::make_shared<CollectiveLeader>(access_.loop)) {}

// --- Joining ---

void JobMembership::begin_joining() {
  const auto met_host = while_alive(this, [](JobMembership& job, const MemberRecord& host) {
    MutexLock lock(job.mutex_);
    job.host_ = host;
  });
  const auto lost = while_alive(this, &JobMembership::lose_membership);
  auto joining = std::make_shared<Joining>(core_, rendezvous_, access_, met_host, lost);
  {
    MutexLock lock(mutex_);
    joining_ = joining;
  }
  Joining::run(std::move(joining))
      .start(core_->handlers())
      .then(
          [self = shared_from_this()](Result<Joining::Joined>&& result) { self->joined(std::move(result)); });
}

void JobMembership::joined(Result<Joining::Joined>&& result) {
  std::vector<std::shared_ptr<Promise<void>>> leavers;
  std::shared_ptr<LeaseKeeper> keeper;  // of a member that joined too late
  std::optional<StoreViewMessage> last_records;
  AgentId host;
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::joining) phase_ = result.ok() ? Phase::joined : Phase::apart;
    if (!result.ok()) {
      join_error_ = result.error();
    } else if (phase_ == Phase::joined) {
      self_ = std::move(result.value());
    } else {
      keeper = result.value().keeper;
    }
    leavers = std::exchange(leavers_, {});
    joining_ = nullptr;
    last_records.swap(last_records_);
    if (host_) host = host_->id();
  }
  if (!result.ok()) {
    const Error error = error_of(result.error());
    if (error.kind() == ErrorKind::peer_lost && rendezvous_.fixed_world)
      fail(error);  // this job cannot continue
    fail_all(error);
    for (const auto& leaver : leavers) leaver->complete(Result<void>{});  // it never was a member
    return;
  }
  if (last_records) {
    on_host_left(host, *std::move(last_records));
  } else {
    publish_state();
    look();
  }
  for (auto& leaver : leavers) publish_left(std::move(leaver));
}

// --- The other members ---

// Requests the changes of the records, unless a request is pending.
void JobMembership::look() {
  std::uint64_t turn = 0, after = 0;
  {
    MutexLock lock(mutex_);
    if (phase_ != Phase::joined || looking_ || failure_ || store_gone_) return;
    looking_ = true;
    turn = ++turn_;
    after = version_;
  }
  auto look = store()
                  ->watch(std::string(membership_keys::members), after, {.timeout = look_timeout})
                  .then([weak = weak_from_this()](Result<StoreChanges>&& changes) {
                    if (const auto job = weak.lock()) job->looked(std::move(changes));
                    return true;
                  });
  {
    MutexLock lock(mutex_);
    if (turn_ == turn && looking_ && phase_ == Phase::joined) {
      look_ = std::move(look);
      return;
    }
  }
  look.cancel();  // answered already, or this agent is no longer a member
}

void JobMembership::look_after(std::chrono::nanoseconds pause) {
  access_.loop->schedule_after(pause, while_alive(this, [](JobMembership& job) {
                                 {
                                   MutexLock lock(job.mutex_);
                                   job.looking_ = false;
                                 }
                                 job.look();
                               }));
}

void JobMembership::looked(Result<StoreChanges>&& result) {
  try {
    if (!take(std::move(result).get())) return;
  } catch (const Error& error) {
    return not_seen(error);
  } catch (const std::exception& error) {
    return not_seen(Error(ErrorKind::internal, error.what()));
  }
  answer();
  std::chrono::nanoseconds pause{};
  {
    MutexLock lock(mutex_);
    pause = std::min<std::chrono::nanoseconds>(pause_per_member * roster_.members().size(), store_pause);
  }
  look_after(pause);
}

bool JobMembership::take(const StoreChanges& changes) {
  Roster::Records before, after;  // of the members that have changed
  {
    MutexLock lock(mutex_);
    after = roster_.changed(changes);
    before = roster_.at(after);
  }
  const auto events = events_between(before, after);
  for (const MemberEvent& event : events)
    if (event.member.name != own_name()) update_routes(event);
  const MemberRecord* lost = rendezvous_.fixed_world ? loss_between(before, after) : nullptr;
  bool out = false;
  CollectiveMembers all;
  {
    MutexLock lock(mutex_);
    blind_since_.reset();
    const bool outdated = store_gone_ && changes.version < version_;  // older than the host's last records
    if (phase_ != Phase::joined || outdated) {
      looking_ = false;
      return false;
    }
    version_ = changes.version;
    roster_.apply(after);
    for (const auto& weak : watchers_)
      if (const auto watcher = weak.lock(); watcher != nullptr && watcher->begun)
        watcher->seen.insert(before.begin(), before.end());
    for (const MemberEvent& event : events)
      if (event.change != MemberChange::joined)
        std::erase_if(rounds_, [id = event.member.id()](const auto& rounds) {
          const CollectiveMembers& members = rounds.second.members;
          return std::binary_search(members.begin(), members.end(), id);
        });
    const MemberRecord* self = roster_.find(own_name());
    out = self == nullptr || self->id() != core_->id() || self->state == MemberState::lost;
    const bool leads = !out && roster_.members().begin()->first == own_name();
    if (leads && rendezvous_.fixed_world && !expects_all_ && roster_.joined() == rendezvous_.world_size) {
      expects_all_ = true;
      for (const auto& [name, member] : roster_.members())
        if (member->state != MemberState::claimed) all.push_back(member->id());
    }
  }
  if (!all.empty()) leader_->expect(all);
  judge_collectives();
  for (const MemberEvent& event : events)
    if (event.change != MemberChange::joined) leader_->forget(event.member.id());
  if (out) {
    lose_membership(Error(ErrorKind::lease_lost, "its record is gone from the job's store"));
    return false;
  }
  if (lost != nullptr) fail(loss_of(lost->name, "its lease has expired"));
  return lost == nullptr;
}

// Passes a member's incarnation and addresses to the routes.
void JobMembership::update_routes(const MemberEvent& event) const {
  const Member& member = event.member;
  switch (event.change) {
    case MemberChange::joined:
      return core_->routes().to_name(member.name, member.addresses)->identify(member.id());
    case MemberChange::left:
      if (!rendezvous_.fixed_world)
        if (const auto route = core_->routes().find(member.name)) route->forget(member.id());
      return;
    case MemberChange::lost:  // in a fixed world, the loss ends the job
      if (!rendezvous_.fixed_world) core_->forget(member.id(), "the job's store reports it as lost");
      return;
  }
}

// Handles a look that failed.
void JobMembership::not_seen(const Error& error) {
  enum class Then { nothing, look, look_later, host_left } then = Then::nothing;
  bool hopeless = false;
  std::optional<Error> silent;
  std::string reason = error.what();
  if (error.kind() == ErrorKind::lease_lost) return lose_membership(error);  // as the host states
  {
    MutexLock lock(mutex_);
    looking_ = false;
    if (phase_ != Phase::joined || failure_) return;
    const bool of_host = access_.with_host && !is_host();
    switch (error.kind()) {
      case ErrorKind::deadline_exceeded:
        blind_since_.reset();
        if (!core_->draining()) then = Then::look;
        if (of_host && host_ && self_.keeper != nullptr && self_.keeper->silence() > rendezvous_.lease)
          silent = loss_of(host_->name, "it has not answered for the duration of a lease");
        break;
      case ErrorKind::cancelled:
        break;
      case ErrorKind::shut_down:
        if (of_host) then = Then::host_left;
        break;
      case ErrorKind::peer_lost:
        // peer_gone() handles a lost connection; another connection may still exist. Not at once: this may
        // precede peer_gone(), and a look at an incarnation that has ended fails within look().
        then = Then::look_later;
        hopeless = !of_host;
        break;
      case ErrorKind::unavailable:
        then = Then::look_later;
        if (!blind_since_) blind_since_ = loop_->now();
        // Once the lease has expired, the store no longer considers this agent a member.
        hopeless = loop_->now() - *blind_since_ >=
                   (self_.keeper != nullptr ? rendezvous_.lease : std::chrono::nanoseconds(reach_timeout));
        if (self_.keeper != nullptr)
          reason = "the job's store has not answered for the duration of a lease: " + reason;
        break;
      default:  // waits fail, but later looks may succeed
        then = Then::look_later;
        hopeless = true;
    }
    looking_ = then == Then::look_later;
  }
  if (silent && rendezvous_.fixed_world) return fail(*silent);
  if (silent || hopeless)
    fail_all(silent ? Error(ErrorKind::unavailable, silent->what()) : Error(error.kind(), reason));
  switch (then) {
    case Then::nothing:
      return;
    case Then::look:
      return look();
    case Then::look_later:
      return look_after(store_pause);
    case Then::host_left:
      return store_is_gone();
  }
}

void JobMembership::find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
  const auto addresses = [](const MemberRecord& member) {
    std::vector<Address> parsed;
    if (!member.gone())
      for (const std::string& text : member.addresses) parsed.push_back(Address::parse(text));
    return parsed;
  };
  std::optional<MemberRecord> known;
  {
    MutexLock lock(mutex_);
    if (const MemberRecord* member = roster_.find(name)) known = *member;
    if (host_ && host_->name == name) known = host_;
  }
  const auto store = this->store();
  if ((known && !known->gone()) || store == nullptr)
    return done(known ? addresses(*known) : std::vector<Address>{});
  store->try_get(member_key(name))
      .then([name, addresses, done = std::move(done)](Result<std::optional<std::string>>&& record) mutable {
        auto found = capture([&] {
          const auto text = std::move(record).get();
          return text ? addresses(from_text(name, *text)) : std::vector<Address>{};
        });
        done(found.ok() ? std::move(found).get() : std::vector<Address>{});
      });
}

std::shared_ptr<Store> JobMembership::store() const {
  MutexLock lock(mutex_);
  return self_.store != nullptr ? self_.store : access_.store;
}

std::vector<Member> JobMembership::members() const {
  std::vector<Member> members;
  MutexLock lock(mutex_);
  for (const auto& [name, member] : roster_.members())
    if (member->here()) members.push_back(*member);
  return members;
}

// --- Waiting calls ---

std::exception_ptr JobMembership::why_not() const {
  if (phase_ == Phase::ended) return std::make_exception_ptr(job_ended());
  if (failure_) return std::make_exception_ptr(*failure_);
  if (join_error_ != nullptr) return join_error_;
  if (has_left())
    return std::make_exception_ptr(Error(ErrorKind::failed_precondition, "this agent has left its job"));
  return nullptr;
}

Future<void> JobMembership::wait_for(std::size_t agents, std::chrono::nanoseconds timeout) {
  if (rendezvous_.fixed_world && agents > rendezvous_.world_size)
    return Future<void>::made(
        Error(ErrorKind::invalid_argument, "wait_for: a world of " + std::to_string(rendezvous_.world_size) +
                                               " cannot have " + std::to_string(agents) + " agents"));
  return add_waiter(std::max<std::size_t>(agents, 1), timeout);
}

Future<void> JobMembership::others_left(std::chrono::nanoseconds timeout) { return add_waiter(0, timeout); }

Future<void> JobMembership::add_waiter(std::size_t agents, std::chrono::nanoseconds timeout) {
  auto promise = std::make_shared<Promise<void>>(loop_);
  MutexLock lock(mutex_);
  const std::uint64_t id = ++last_waiter_;
  const auto end_waiter = [this, id](ErrorKind kind) {
    return while_alive(this, [id, kind](JobMembership& job) { job.end_waiter(id, kind); });
  };
  promise->on_cancel(end_waiter(ErrorKind::cancelled));
  auto future = promise->future();
  if (phase_ == Phase::apart) join_error_ = nullptr;  // joins again
  if (const auto error = why_not()) {
    lock.unlock();
    promise->fail(error);
    return future;
  }
  waiters_.emplace(id, Waiter{agents, std::move(promise)});
  const bool first = phase_ == Phase::apart;
  const bool gone = store_gone_;
  if (first) phase_ = Phase::joining;
  lock.unlock();
  if (timeout != no_timeout) access_.loop->schedule_after(timeout, end_waiter(ErrorKind::deadline_exceeded));
  if (first) {
    begin_joining();
  } else if (gone) {
    store_is_gone();
  } else {
    publish_state();
    answer();
    look();
  }
  return future;
}

// Removes the waiter and fails it.
void JobMembership::end_waiter(std::uint64_t id, ErrorKind kind) {
  std::shared_ptr<Promise<void>> promise;
  std::string why = "the wait was cancelled";
  {
    MutexLock lock(mutex_);
    const auto found = waiters_.find(id);
    if (found == waiters_.end()) return;
    promise = std::move(found->second.promise);
    const std::size_t agents = found->second.agents;
    waiters_.erase(found);
    if (kind == ErrorKind::deadline_exceeded)
      why = agents == 0 ? remaining_members_text() : missing_members_text(agents);
  }
  publish_state();
  promise->fail(Error(kind, why));
}

std::string JobMembership::remaining_members_text() const {
  std::string names;
  for (const std::string& name : awaited()) names += (names.empty() ? "'" : ", '") + name + "'";
  const std::size_t joined = roster_.joined(), world = rendezvous_.fixed_world ? rendezvous_.world_size : 0;
  if (joined < world)
    names += (names.empty() ? "" : ", and ") + std::to_string(world - joined) + " that never joined";
  return "other members have not left before the deadline: " +
         (names.empty() ? "the store has no list of them" : names);
}

std::string JobMembership::missing_members_text(std::size_t agents) const {
  const std::string deadline = " before the deadline";
  if (version_ == 0)
    return "'" + own_name() + "' has not joined its job" + deadline + ": " +
           (joining_ != nullptr ? joining_->obstacle() : "the job's store has not listed the members");
  if (!rendezvous_.fixed_world)
    return std::to_string(roster_.here()) + " of " + std::to_string(agents) + " members are present" +
           deadline;
  std::vector<bool> joined(rendezvous_.world_size);
  for (const auto& [name, member] : roster_.members())
    if (member->state != MemberState::claimed && member->rank && *member->rank < joined.size())
      joined[*member->rank] = true;
  std::string ranks;
  std::size_t missing = 0;
  for (std::size_t rank = 0; rank < joined.size(); ++rank) {
    if (joined[rank]) continue;
    if (++missing <= max_named_ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (missing > max_named_ranks) ranks += " and " + std::to_string(missing - max_named_ranks) + " others";
  return std::to_string(missing) + " of " + std::to_string(joined.size()) + " ranks have not joined" +
         deadline + ": " + ranks;
}

std::unique_ptr<MemberWatch> JobMembership::watch() {
  auto watcher = std::make_shared<Watcher>();
  MutexLock lock(mutex_);
  std::erase_if(watchers_, [](const auto& old) { return old.expired(); });
  watchers_.push_back(watcher);
  return std::make_unique<MemberWatch>(weak_from_this(), std::move(watcher));
}

Future<JobMembership::Events> JobMembership::next(const std::shared_ptr<Watcher>& watcher) {
  auto promise = std::make_shared<Promise<Events>>(loop_);
  auto future = promise->future();
  promise->on_cancel([weak = weak_from_this(), looks = std::weak_ptr(watcher)] {
    const auto job = weak.lock();
    const auto waiting = looks.lock();
    if (job == nullptr || waiting == nullptr) return;
    std::shared_ptr<Promise<Events>> cancelled;
    {
      MutexLock lock(job->mutex_);
      cancelled = std::exchange(waiting->promise, nullptr);
    }
    if (cancelled != nullptr) cancelled->fail(Error(ErrorKind::cancelled, "the wait was cancelled"));
  });
  std::exception_ptr error;
  Events events;
  {
    MutexLock lock(mutex_);
    error = why_not();
    if (error == nullptr && store_gone_) error = std::make_exception_ptr(host_has_left());
    if (error == nullptr && phase_ == Phase::apart)
      error = std::make_exception_ptr(
          Error(ErrorKind::failed_precondition,
                "'" + own_name() + "' has not joined its job: await wait_for() first"));
    if (error == nullptr && watcher->promise != nullptr)
      error = std::make_exception_ptr(
          Error(ErrorKind::failed_precondition, "a next() of this watch is in flight: await it first"));
    if (error == nullptr) {
      events = events_for(*watcher);
      if (events.empty()) {
        watcher->promise = std::move(promise);
        return future;
      }
    }
  }
  promise->complete(error != nullptr ? Result<Events>(error) : Result<Events>(std::move(events)));
  return future;
}

// What has changed since the last call.
JobMembership::Events JobMembership::events_for(Watcher& watcher) const {
  if (!std::exchange(watcher.begun, true)) return events_between({}, roster_.members());
  const Roster::Records seen = std::exchange(watcher.seen, {});
  return events_between(seen, roster_.at(seen));
}

std::string JobMembership::name_of(std::size_t rank) const {
  if (!rendezvous_.fixed_world)
    throw Error(ErrorKind::failed_precondition,
                "rank " + std::to_string(rank) + " has no member: members have ranks in a fixed world only");
  if (rank >= rendezvous_.world_size)
    throw Error(ErrorKind::not_found, "rank " + std::to_string(rank) + " is not within a world of " +
                                          std::to_string(rendezvous_.world_size));
  MutexLock lock(mutex_);
  for (const auto& [name, member] : roster_.members())
    if (member->rank == rank && member->state != MemberState::claimed) return name;
  throw Error(ErrorKind::not_found,
              "the member with rank " + std::to_string(rank) + " is unknown: await wait_for() first");
}

std::vector<std::string> JobMembership::awaited() const { return roster_.awaited_by(own_name(), is_host()); }

bool JobMembership::no_member_works() const {
  return roster_.joined() >= (rendezvous_.fixed_world ? rendezvous_.world_size : 0) &&
         roster_.idle(own_name());
}

// A member that only serves ends in three steps, once no other member has work left. First its layers release
// what they hold at the others. Then it waits until every serving member has done the same, so that no object
// is held when its owner ends. Then it leaves. If the store is gone, it cannot see the others' releases, and
// leaves.
void JobMembership::answer() {
  std::vector<Waiter> answered;
  bool release = false;
  std::vector<std::string> whole;  // the members of a fixed world, if all have joined and a waiter needs them
  std::vector<std::pair<std::shared_ptr<Promise<Events>>, Events>> notifications;
  {
    MutexLock lock(mutex_);
    if (version_ == 0) return;
    const bool fixed = rendezvous_.fixed_world;
    const std::size_t world = fixed ? rendezvous_.world_size : 0;
    const std::size_t present = fixed ? roster_.joined() : roster_.here();
    const bool idle = no_member_works();
    const bool may_end =
        idle && released_ && (store_gone_ || awaited().empty() || (waited_for_release_ && !is_host()));
    for (auto i = waiters_.begin(); i != waiters_.end();) {
      const std::size_t agents = i->second.agents;
      const bool due = agents == 0 ? may_end : present >= agents;
      release = release || (agents == 0 && idle && !releasing_);
      if (due) answered.push_back(std::move(i->second));
      i = due ? waiters_.erase(i) : std::next(i);
    }
    releasing_ = releasing_ || release;
    const bool joins = std::any_of(answered.begin(), answered.end(),
                                   [](const Waiter& waiter) { return waiter.agents != 0; });
    if (fixed && present == world && joins)
      for (const auto& [name, member] : roster_.members()) whole.push_back(name);
    for (const auto& weak : watchers_) {
      const auto watcher = weak.lock();
      if (watcher == nullptr || watcher->promise == nullptr) continue;
      auto events = events_for(*watcher);
      if (events.empty()) continue;
      notifications.emplace_back(std::exchange(watcher->promise, nullptr), std::move(events));
    }
  }
  for (auto& [promise, events] : notifications) promise->complete(std::move(events));
  for (auto& waiter : answered) {
    if (waiter.agents == 0) {
      publish_left(std::move(waiter.promise));
    } else {
      waiter.promise->complete(whole.empty() ? Result<void>{} : core_->hooks().world_complete(whole));
    }
  }
  if (release)
    core_->hooks().leave(core_->pick_loop()).then(while_alive(this, [](JobMembership& job, Result<void>&&) {
      job.released();
    }));
}

void JobMembership::released() {
  {
    MutexLock lock(mutex_);
    released_ = true;
  }
  publish_state();
  answer();
  access_.loop->schedule_after(release_timeout, while_alive(this, [](JobMembership& job) {
                                 {
                                   MutexLock lock(job.mutex_);
                                   job.waited_for_release_ = true;
                                 }
                                 job.answer();
                               }));
}

void JobMembership::fail_all(const Error& error, Spared spared) {
  std::map<std::uint64_t, Waiter> waiters;
  std::vector<std::shared_ptr<Promise<Events>>> watches;
  {
    MutexLock lock(mutex_);
    for (auto i = waiters_.begin(); i != waiters_.end();) {
      const bool fails = spared == Spared::nobody || i->second.agents != 0;
      if (fails)
        waiters.insert(waiters_.extract(i++));
      else
        ++i;
    }
    for (const auto& weak : watchers_)
      if (const auto watcher = weak.lock(); watcher != nullptr && watcher->promise != nullptr)
        watches.push_back(std::exchange(watcher->promise, nullptr));
  }
  leader_->fail_all(error);
  for (auto& [id, waiter] : waiters) waiter.promise->fail(error);
  for (const auto& promise : watches) promise->fail(error);
}

// Publishes whether this member only serves. It publishes one change at a time. After the member has left,
// the record differs from the expected one, so nothing is published.
void JobMembership::publish_state() {
  MemberRecord next;
  std::string before;
  LeaseId lease = no_lease;
  {
    MutexLock lock(mutex_);
    const bool serves =
        std::any_of(waiters_.begin(), waiters_.end(), [](const auto& w) { return w.second.agents == 0; });
    const MemberState state = !serves     ? MemberState::joined
                              : released_ ? MemberState::released
                                          : MemberState::serving;
    if (phase_ != Phase::joined || failure_ || store_gone_ || publishing_ || self_.record.state == state)
      return;
    publishing_ = true;
    before = to_text(self_.record);
    next = self_.record;
    next.state = state;
    lease = self_.lease;
  }
  store()
      ->compare_set(member_key(own_name()), before, to_text(next), lease)
      .then(while_alive(this, [next](JobMembership& job, Result<StoreExchange>&& result) {
        job.published_state(next, std::move(result));
      }));
}

void JobMembership::published_state(const MemberRecord& next, Result<StoreExchange>&& result) {
  bool again = false;
  {
    MutexLock lock(mutex_);
    publishing_ = false;
    if (result.ok()) {
      const StoreExchange& exchange = result.value();
      if (exchange.stored) self_.record = next;
      again = exchange.stored || adopt(exchange.actual);
    } else {
      // The other members wait for this change, so it is tried until looks have failed for a lease.
      publishing_ = error_kind(result.error()) != ErrorKind::shut_down;
    }
    if (publishing_)
      access_.loop->schedule_after(store_pause, while_alive(this, [](JobMembership& job) {
                                     {
                                       MutexLock locked(job.mutex_);
                                       job.publishing_ = false;
                                     }
                                     job.publish_state();
                                   }));
  }
  if (again) publish_state();
}

bool JobMembership::adopt(const std::optional<std::string>& actual) {
  if (!actual) return false;
  const auto read = capture([&] { return from_text(own_name(), *actual); });
  if (!read.ok()) return false;
  MemberRecord record = Result<MemberRecord>(read).get();
  if (record.id() != core_->id() || record.gone()) return false;
  self_.record = std::move(record);
  return true;
}

// The host, which kept the store, has left gracefully: members no longer learn of joins and leaves.
void JobMembership::store_is_gone() {
  std::string text;
  Spared spared = Spared::nobody;
  // The host's address may belong to another job's store soon, which does not know this lease.
  std::shared_ptr<LeaseKeeper> keeper;
  {
    MutexLock lock(mutex_);
    store_gone_ = true;
    keeper = std::move(self_.keeper);
    if (version_ != 0 && no_member_works()) spared = Spared::serving_only;  // answer() completes their wait
    for (const std::string& name : awaited())
      if (!host_ || name != host_->name) text += (text.empty() ? "" : ", ") + name;
    text = "'" + (host_ ? host_->name : title_of_store(rendezvous_)) +
           "' keeps this job's store and has left" + (text.empty() ? "" : " before " + text) +
           ": it should serve until the others have left";
  }
  answer();
  fail_all(Error(ErrorKind::unavailable, text), spared);
}

// For operations that start after the host has left.
Error JobMembership::host_has_left() const {
  return Error(ErrorKind::unavailable,
               "'" + (host_ ? host_->name : title_of_store(rendezvous_)) +
                   "' (rank 0), which kept this job's store, has left: existing groups "
                   "and calls continue, new groups, barriers and all_gathers need rank 0");
}

}  // namespace weft::rpc::detail
