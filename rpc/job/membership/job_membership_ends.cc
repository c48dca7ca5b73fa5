// JobMembership: how a membership ends: this member leaves or loses its lease, or others are lost.
#include <weft/rpc/job/membership/job_membership.h>

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/core/while_alive.h>

namespace weft::rpc::detail {
namespace {

// How long a member that does not answer can delay the host in failing the job.
constexpr auto notify_timeout = std::chrono::seconds{1};
// How long a member that does not answer can delay the end of the host that leaves before others.
constexpr auto end_timeout = std::chrono::seconds{5};
// In an elastic world: how long a store keeps the record of a member that left or was lost. So the other
// members can tell the two cases apart, and names that are used once do not accumulate.
constexpr auto remembered = std::chrono::minutes{2};

void log_error(const AgentCore& core, LogLevel level, const Error& error, std::string_view peer = {}) {
  core.log().write(level, error.what(),
                   {{log_fields::peer, peer}, {log_fields::kind, to_string(error.kind())}});
}

}  // namespace

// --- Leaving ---

Future<void> JobMembership::leave() {
  auto promise = std::make_shared<Promise<void>>(loop_);
  auto future = promise->future();
  MutexLock lock(mutex_);
  switch (phase_) {
    case Phase::joined:
    case Phase::leaving: {
      lock.unlock();
      publish_left(std::move(promise));
      break;
    }
    case Phase::joining: {
      leavers_.push_back(std::move(promise));
      const auto joining = joining_;
      lock.unlock();
      if (joining != nullptr) joining->stop();
      break;
    }
    default:
      if (phase_ == Phase::apart) phase_ = Phase::left;
      lock.unlock();
      promise->complete(Result<void>{});
  }
  return future;
}

void JobMembership::publish_left(std::shared_ptr<Promise<void>> done) {
  bool begins = false;
  Future<bool> look;
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::joined || phase_ == Phase::leaving) {
      phase_ = Phase::leaving;
      begins = leavers_.empty();  // otherwise an earlier call is in progress
      leavers_.push_back(std::exchange(done, nullptr));
      if (begins)  // as long as looks are tried; they may have failed for a while
        leave_until_ =
            later(blind_since_.value_or(loop_->now()), rendezvous_.lease > std::chrono::nanoseconds::zero()
                                                           ? rendezvous_.lease
                                                           : std::chrono::nanoseconds(reach_timeout));
    }
    look = std::move(look_);  // a pending call, which would keep the agent from draining
  }
  look.cancel();
  fail_all(Error(ErrorKind::shut_down, "this agent is leaving its job"));
  arrivals_.cancel();
  if (done != nullptr) done->complete(Result<void>{});  // it has left, or has shut down
  if (begins) write_left();
}

// The record replaces only a record of this incarnation: after an outage, the name may belong to the next
// one.
void JobMembership::write_left() {
  std::optional<Error> failure;
  bool gone = false;
  MemberRecord record;
  {
    MutexLock lock(mutex_);
    if (phase_ != Phase::leaving) return;
    failure = failure_;
    gone = store_gone_;
    record = self_.record;
  }
  if (failure) return left(*failure);
  if (gone) return left(Result<void>{});
  const std::string before = to_text(record);
  record.state = MemberState::left;
  remembrance().then([self = shared_from_this(), before, text = to_text(record)](Result<StoreLease>&& lease) {
    if (!lease.ok()) return self->wrote_left(text, lease.error());
    self->store()
        ->compare_set(member_key(self->own_name()), before, text, lease.value().id)
        .then([self, text](Result<StoreExchange>&& result) { self->wrote_left(text, std::move(result)); });
  });
}

// The lease for the record of a member that is gone. In a fixed world the record stays, because its name is
// not used again.
Future<StoreLease> JobMembership::remembrance() {
  if (rendezvous_.fixed_world) return Future<StoreLease>::made(StoreLease{});
  return store()->grant(remembered + 2 * rendezvous_.lease);
}

void JobMembership::wrote_left(const std::string& text, Result<StoreExchange>&& result) {
  if (result.ok()) {
    const StoreExchange& exchange = result.value();
    if (exchange.stored || exchange.actual == text) return left(Result<void>{});
    bool again = false;
    {
      MutexLock lock(mutex_);
      again = adopt(exchange.actual);  // publish_state() was in progress
    }
    if (again) return write_left();
    return left(Error(ErrorKind::lease_lost,
                      "this agent was declared dead: its record is gone from the job's store"));
  }
  const Error error = error_of(result.error());
  bool again = false, host_left = false;
  {
    MutexLock lock(mutex_);
    again = is_outage(error) && !store_gone_ && !failure_ && loop_->now() < leave_until_;
    // A host that has left does not reply to members that leave after it.
    host_left = store_gone_ || (access_.with_host && error.kind() == ErrorKind::shut_down);
  }
  if (host_left) return left(Result<void>{});
  if (!again) return left(error);
  access_.loop->schedule_after(store_pause, while_alive(this, &JobMembership::write_left));
}

// If `published` is an error, this member is still leaving, and renews its lease: leave() may be called
// again. The lease is not revoked, because no record depends on it any more, and the host, which may keep the
// store, ends as soon as it sees the record.
void JobMembership::left(Result<void>&& published) {
  std::vector<std::shared_ptr<Promise<void>>> leavers;
  std::shared_ptr<LeaseKeeper> keeper;
  {
    MutexLock lock(mutex_);
    if (phase_ != Phase::leaving) return;
    leavers.swap(leavers_);
    if (published.ok()) {
      phase_ = Phase::left;
      keeper = std::move(self_.keeper);
    }
  }
  const auto complete = [leavers = std::move(leavers)](const Result<void>& result) {
    for (const auto& leaver : leavers) leaver->complete(result);
  };
  if (!published.ok()) return complete(published);
  after_left([complete] { complete(Result<void>{}); });
}

void JobMembership::after_left(std::function<void()> done) {
  const bool keeps_store = is_host() && access_.with_host;
  if (keeps_store && !rendezvous_.fixed_world) access_.close();
  if (!rendezvous_.fixed_world || !(keeps_store || access_.discard)) return done();
  store()
      ->list(std::string(membership_keys::members))
      .then([self = shared_from_this(), done, keeps_store](Result<StoreView>&& view) {
        const auto last = capture([&] {
          const Roster roster(view.value());
          return roster.joined() >= self->rendezvous_.world_size &&
                 (keeps_store || roster.awaited_by(self->own_name(), true).empty());
        });
        if (!last.ok()) log_error(*self->core_, LogLevel::warning, error_of(last.error()));
        const bool ends = last.ok() && Result<bool>(last).get();
        // The host passes the records on. Of the other members, the last one removes the job's data.
        Future<void> ended = !ends         ? Future<void>::made(Result<void>{})
                             : keeps_store ? self->announce_end(view.value())
                                           : self->access_.discard();
        ended.then([self, done, keeps_store](Result<void>&& result) {
          if (!result.ok()) log_error(*self->core_, LogLevel::warning, error_of(result.error()));
          if (keeps_store) self->access_.close();
          done();
        });
      });
}

// Sends the records to the members that have not left, which need the store no longer.
Future<void> JobMembership::announce_end(const StoreView& records) const {
  StoreViewMessage message{records.version, {}};
  for (const auto& [key, text] : records.entries) message.entries.emplace(key, to_bytes(text));
  std::vector<Future<void>> notified;
  const Roster roster(records);
  for (const auto& [name, member] : roster.members())
    if (!member->gone() && name != own_name())
      notified.push_back(Peer(core_, core_->routes().to_name(name))
                             .only(member->id())
                             .with(CallOptions{.timeout = end_timeout})
                             .call<&MembershipService::host_left>(message));
  return when_all(std::move(notified));
}

void JobMembership::on_host_left(const AgentId& reporter, StoreViewMessage records) {
  {
    MutexLock lock(mutex_);
    if (!access_.with_host || !host_ || host_->id() != reporter)
      throw Error(ErrorKind::permission_denied,
                  "'" + reporter.name + "' does not keep the store of this job");
    store_gone_ = true;  // a member that is leaving needs this, too
    if (phase_ == Phase::joining) last_records_ = std::move(records);
    if (phase_ != Phase::joined || failure_) return;
  }
  StoreChanges changes{records.version, true, {}};
  for (const auto& [key, text] : records.entries) changes.entries.emplace(key, to_string(text));
  try {
    if (!take(changes)) return;
  } catch (const Error& malformed) {
    log_error(*core_, LogLevel::error, malformed);
  }
  store_is_gone();
}

void JobMembership::shut_down() {
  std::vector<std::shared_ptr<Promise<void>>> leavers;
  std::shared_ptr<Joining> joining;
  std::shared_ptr<LeaseKeeper> keeper;
  Future<bool> look;
  bool left = false;
  {
    MutexLock lock(mutex_);
    left = phase_ == Phase::left;
    phase_ = Phase::ended;
    leavers.swap(leavers_);
    joining = joining_;
    keeper = std::move(self_.keeper);
    look = std::move(look_);
  }
  leader_->stop();
  fail_all(job_ended());
  for (const auto& leaver : leavers) leaver->fail(job_ended());
  look.cancel();
  keeper = nullptr;
  // A host that closes without having left is lost to the others. Its store must not tell the others that it
  // was closed; they see the end of their connections.
  if (access_.close && (left || !access_.with_host)) access_.close();
  if (joining != nullptr) joining->stop();
}

// --- Losses ---

void JobMembership::peer_gone(const AgentId& peer, const Error& reason) {
  {
    MutexLock lock(mutex_);
    if (failure_ || phase_ == Phase::ended) return;
    if (!is_host() && host_ && host_->id() == peer && access_.with_host &&
        reason.kind() == ErrorKind::shut_down)
      store_gone_ = true;  // a member that is leaving needs this, too
    if (has_left()) return;
    if (!is_host()) {
      if (!host_ || host_->id() != peer) return;
      const bool gone = store_gone_;
      lock.unlock();
      // Only the store could report that the host has left; but a host that leaves tells the members, and
      // sends a goodbye.
      if (gone) {
        store_is_gone();
      } else if (reason.kind() != ErrorKind::shut_down && rendezvous_.fixed_world) {
        fail(loss_of(peer.name, reason.what()));
      }
      return;
    }
  }
  store()
      ->list(std::string(membership_keys::members))
      .then([weak = weak_from_this(), peer, reason](Result<StoreView>&& view) {
        const auto job = weak.lock();
        if (job == nullptr || !view.ok()) return;
        try {
          job->judge(peer, reason, Roster(view.value()));
        } catch (const Error& bad) {
          log_error(*job->core_, LogLevel::error, bad);
        }
      });
}

// The peer has learned of a loss before this agent, and has failed its world.
void JobMembership::peer_job_failed(const AgentId& peer, const Error& error) {
  {
    MutexLock lock(mutex_);
    const MemberRecord* member = roster_.find(peer.name);
    const bool known = (member != nullptr && member->id() == peer) || (host_ && host_->id() == peer);
    if (!rendezvous_.fixed_world || !known || failure_ || phase_ != Phase::joined) return;
  }
  fail(error);
}

// On the host: decides whether the end of a connection is a loss.
void JobMembership::judge(const AgentId& peer, const Error& reason, const Roster& roster) {
  const MemberRecord* member = roster.find(peer.name);
  if (member == nullptr || member->id() != peer || member->gone()) return;
  if (rendezvous_.fixed_world) return announce_loss(*member, reason, roster);
  log_error(*core_, LogLevel::warning, loss_of(peer.name, reason.what()), peer.name);
  MemberRecord lost = *member;
  lost.state = MemberState::lost;
  remembrance().then([self = shared_from_this(), name = peer.name, before = to_text(*member),
                      after = to_text(lost)](Result<StoreLease>&& lease) {
    if (!lease.ok()) return;  // then the expiry of the member's own lease removes the record
    self->store()->compare_set(member_key(name), before, after, lease.value().id).then([](auto&&) {});
  });
}

void JobMembership::announce_loss(const MemberRecord& lost, const Error& reason, const Roster& roster) {
  const Error error = loss_of(lost.name, reason.what());
  {
    MutexLock lock(mutex_);
    if (failure_ || has_left() || phase_ == Phase::ended) return;
    failure_ = error;
  }
  core_->set_job_error(error);
  // Notify the others first: once the world has failed here, this agent makes no more calls.
  std::vector<Future<void>> notified;
  for (const auto& [name, member] : roster.members())
    if (!member->gone() && name != lost.name && name != own_name())
      notified.push_back(Peer(core_, core_->routes().to_name(name))
                             .with(CallOptions{.timeout = notify_timeout})
                             .call<&MembershipService::lost>(lost.name, std::string(reason.what())));
  when_all(std::move(notified)).then([self = shared_from_this(), error](auto&&) { self->fail(error); });
}

void JobMembership::check_alive() const {
  MutexLock lock(mutex_);
  if (failure_) throw *failure_;
  if (!is_host())
    throw Error(ErrorKind::failed_precondition, "'" + own_name() + "' is not the host of this job");
}

void JobMembership::on_loss_report(const AgentId& reporter, const std::string& name,
                                   const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!host_ || host_->id() != reporter)
      throw Error(ErrorKind::permission_denied, "'" + reporter.name + "' is not the host of this job");
    if (has_left() || phase_ == Phase::ended) return;
  }
  fail(loss_of(name, reason));
}

void JobMembership::fail(const Error& error) {
  {
    MutexLock lock(mutex_);
    if (!failure_) failure_ = error;
  }
  core_->fail_job(error);
  fail_all(error);
}

// The other members consider this agent dead, so it must not continue as a member.
void JobMembership::lose_membership(const Error& reason) {
  const Error error(ErrorKind::lease_lost, std::string("this agent was declared dead: ") + reason.what());
  std::shared_ptr<Joining> joining;
  {
    MutexLock lock(mutex_);
    if (failure_ || (phase_ != Phase::joined && phase_ != Phase::joining)) return;
    failure_ = error;
    joining = joining_;
  }
  if (joining != nullptr) joining->stop();
  if (rendezvous_.fixed_world) return fail(error);
  log_error(*core_, LogLevel::error, error);
  fail_all(error);
  arrivals_.cancel();
}

}  // namespace weft::rpc::detail
