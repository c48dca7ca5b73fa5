#include <weft/rpc/endpoint/route.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/shm/companion.h>
#include <weft/rpc/transport/transport.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// Whether a later attempt may succeed without a change on this side, because the peer starts, the network
// recovers, or the next incarnation of the peer listens.
bool is_transient(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::unavailable:
    case ErrorKind::peer_lost:
    case ErrorKind::shut_down:
    case ErrorKind::lease_lost:
    case ErrorKind::not_found:
    case ErrorKind::deadline_exceeded:
    case ErrorKind::resource_exhausted:
      return true;
    default:
      return false;
  }
}

Error gone(const AgentId& life) { return {ErrorKind::peer_lost, to_string(life) + " is gone"}; }

}  // namespace

Route::Route(const std::shared_ptr<AgentCore>& core, std::shared_ptr<Loop> loop, std::string name,
             std::vector<Address> addresses)
    : CallRoute(std::move(loop), core->options().retry_budget),
      core_(core),
      name_(std::move(name)),
      addresses_(std::move(addresses)) {}

std::shared_ptr<const AgentId> Route::identity() const {
  MutexLock lock(mutex_);
  return identity_;
}

std::string Route::peer_name() const {
  const auto peer = identity();
  return peer ? peer->name : name_;
}

void Route::identify(AgentId id) {
  auto known = std::make_shared<const AgentId>(std::move(id));
  MutexLock lock(mutex_);
  identity_ = std::move(known);
}

// A call that is made on the loop does not overtake calls that were made before it on other threads and are
// still queued for the loop.
void Route::submit(std::shared_ptr<PendingCall> call) {
  if (loop()->running_here()) {
    place_handed_in();
    return place(std::move(call));
  }
  {
    MutexLock lock(mutex_);
    handed_in_.push_back(call);
    has_handed_in_ = true;
  }
  loop()->post([self = shared_from_this(), kept = std::move(call)] { self->place_handed_in(); });
}

// Takes one call at a time, because placing a call may run code that makes further calls.
void Route::place_handed_in() {
  while (has_handed_in_) {
    std::shared_ptr<PendingCall> call;
    {
      MutexLock lock(mutex_);
      if (handed_in_.empty()) return;
      call = handed_in_.front().lock();
      handed_in_.pop_front();
      has_handed_in_ = !handed_in_.empty();
    }
    if (call != nullptr) place(std::move(call));
  }
}

void Route::place(std::shared_ptr<PendingCall> call) {
  if (call->finished()) return;
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) {
    call->lose(ErrorKind::shut_down, "this agent has shut down");
    return;
  }
  if (core->job_ended()) {
    call->fail(*core->job_error());
    return;
  }
  if (const auto session = call->resumable() ? session_for(*core, *call) : nullptr) {
    watch_time(call, false);
    return session->submit(std::move(call));
  }
  // An incarnation whose session has ended may have connected again. In this case, calls that are not
  // resumable reach it.
  if (call->only() != nullptr && core->sessions().is_gone(*call->only()) &&
      (call->resumable() || !core->links().is_linked(*call->only())))
    return fail(*call, gone(*call->only()));
  auto link = link_;
  // The route leads to the latest known incarnation of that name. An older or a newer incarnation may also be
  // connected.
  if (call->only() != nullptr && (link == nullptr || link->peer() != *call->only())) {
    const auto same = core->links().to(*call->only());
    const auto usable =
        std::find_if(same.begin(), same.end(), [](const auto& it) { return it->usable(true); });
    if (usable != same.end()) link = *usable;
  }
  if (link != nullptr && link->usable(call->upkeep())) {
    watch_time(call, false);
    // If both sides dialled at the same time, the link may belong to another loop than the route.
    if (link->loop()->running_here()) return link->send(call);
    link->loop()->post([link, call] { link->send(call); });
    return;
  }
  // Upkeep calls serve other calls, which have ended with the last connection, so an upkeep call never
  // connects. An exception is the agent itself, to which it connects at the first use.
  if (call->upkeep() && name_ != core->id().name) {
    call->lose(ErrorKind::peer_lost, "the connection has ended");
    return;
  }
  if (in_backoff() && for_nobody_) end_backoff();
  if (in_backoff() && !waits(*call, *core, *refusal_)) {
    const std::chrono::duration<double> left = not_before_ - loop()->now();
    return fail(*call, Error(refusal_->kind(), std::string(refusal_->what()) +
                                                   "; the next attempt to connect is due in " +
                                                   std::to_string(left.count()) + " s"));
  }
  watch_time(call, true);
  if (waiting_.size() >= prune_at_) prune();
  waiting_.push_back(std::move(call));
  dial();
}

// The session of a resumable call, which exists even while its peer is absent. null: there is no session yet,
// so the call waits for a connection like other calls.
std::shared_ptr<Session> Route::session_for(const AgentCore& core, const PendingCall& call) const {
  if (call.upkeep()) return nullptr;
  if (link_ != nullptr && link_->usable() && (call.only() == nullptr || link_->peer() == *call.only()))
    return link_->session();
  const auto known = identity();
  const AgentId* life = call.only() != nullptr ? call.only() : known.get();
  return life == nullptr ? nullptr : core.sessions().find(*life);
}

// Removes calls that have ended. Called when the queue has doubled since the last time, because a search for
// each call that ends would cost O(n * n) for n calls.
void Route::prune() {
  std::erase_if(waiting_, [](const auto& call) { return call->finished(); });
  prune_at_ = std::max<std::size_t>(64, 2 * waiting_.size());
}

// Sets the call's timer. connecting: the call waits for a connection.
void Route::watch_time(const std::shared_ptr<PendingCall>& call, bool connecting) {
  std::optional<Clock::time_point> when = call->deadline();
  bool late = true;
  if (connecting && call->connect_within()) {
    const auto timeout = later(loop()->now(), *call->connect_within());
    late = when && *when <= timeout;
    if (!late) when = timeout;
  }
  if (!when) return call->set_timer(loop(), 0);
  call->set_timer(loop(), loop()->schedule(*when, [weak = std::weak_ptr(call), late] {
    const auto over = weak.lock();
    if (over == nullptr) return;
    if (late) return over->give_up(ErrorKind::deadline_exceeded, "the deadline has passed");
    over->give_up(ErrorKind::unavailable,
                  "no connection within " +
                      std::to_string(std::chrono::duration<double>(*over->connect_within()).count()) +
                      " s (CallOptions::connect_within)");
  }));
}

void Route::cancel(std::shared_ptr<PendingCall> call) {
  if (call->finished()) return;
  loop()->post([call = std::move(call)] { call->give_up(ErrorKind::cancelled, "cancelled by the caller"); });
}

void Route::learn(std::vector<Address> addresses) {
  if (addresses.empty() || addresses == addresses_) return;
  addresses_ = std::move(addresses);
  end_backoff();  // because no failure of the new addresses is known
  if (dialling_ || (waiting_.empty() && !wanted_)) return;
  not_before_ = loop()->now();
  dial_later();  // later, because a new link may be reported first
}

void Route::forget(const AgentId& life) {
  loop()->post([self = shared_from_this(), life] {
    MutexLock lock(self->mutex_);
    if (self->identity_ == nullptr || *self->identity_ != life) return;
    self->identity_ = nullptr;
    if (!Address::looks_like(self->name_)) self->addresses_.clear();
  });
}

void Route::rejoin() {
  loop()->post([self = shared_from_this()] {
    self->rejoining_ = true;
    self->refused_dials_ = 0;
    self->end_backoff();
    self->dial();
  });
}

void Route::end_of(const AgentId& life) {
  loop()->post(while_alive(this, [life](Route& self) {
    self.rejoining_ = false;
    for (const auto& call : std::vector(self.waiting_.begin(), self.waiting_.end()))
      if (call->only() != nullptr && *call->only() == life) self.fail(*call, gone(life));
  }));
}

void Route::connect() {
  if (wanted_.exchange(true)) return;
  loop()->post([self = shared_from_this()] {
    if (self->link_ != nullptr && self->link_->usable()) self->wanted_ = false;
    self->dial();
  });
}

void Route::dial() {
  if (dialling_ || (waiting_.empty() && !wanted_ && !rejoining_)) return;
  const auto core = core_.lock();
  if (core == nullptr) return;
  if (in_backoff()) return dial_later();
  dialling_ = true;
  for_nobody_ = waiting_.empty() && !wanted_;
  if (reach_ != Reach::failing) reach_ = Reach::connecting;
  const Error nowhere(ErrorKind::not_found, "this agent knows no address of '" + name_ + "'");
  if (!addresses_.empty()) return dial_all(*core, addresses_, nowhere);
  core->routes().find_addresses(name_, [self = shared_from_this(), nowhere](std::vector<Address> found) {
    self->loop()->post([self, nowhere, found = std::move(found)] {
      self->learn(found);
      const auto live = self->core_.lock();
      if (live == nullptr) return self->dial_next(nowhere);
      self->dial_all(*live, found, nowhere);
    });
  });
}

// Dials each address, after its companion in shared memory.
void Route::dial_all(const AgentCore& core, const std::vector<Address>& addresses, const Error& nowhere) {
  untried_.clear();
  refused_ = false;
  all_refused_ = all_prove_ = true;
  const bool same_host = core.options().same_host && core.options().credentials == nullptr;
  for (const Address& address : addresses) {
    if (same_host && core.transport("shm") != nullptr)
      for (Address& companion : companions_towards(address)) untried_.push_back(std::move(companion));
    untried_.push_back(address);
  }
  dial_next(nowhere);
}

void Route::dial_next(const Error& last) {
  const auto core = core_.lock();
  if (core == nullptr || core->ended() || untried_.empty()) return dial_ended(last);
  const Address address = std::move(untried_.front());
  untried_.pop_front();
  dialled_ = address;
  Transport* transport = core->transport(address.scheme);
  if (transport == nullptr)
    return dial_next(Error(ErrorKind::unsupported, "this agent has no transport for " + address.text()));
  if (core->options().credentials != nullptr && !transport->checks_credentials())
    return dial_next(
        Error(ErrorKind::permission_denied,
              "this agent has credentials, which the transport of " + address.text() + " does not check"));
  try {
    transport->connect(address, loop(),
                       core->connection_options(Address::looks_like(name_) ? std::string() : name_),
                       [self = shared_from_this()](Result<std::shared_ptr<Connection>> made) {
                         self->connected(std::move(made));
                       });
  } catch (const Error& error) {
    dial_next(error);
  }
}

// Whether the call still waits after an attempt to connect has failed with this error. A resumable call also
// waits for its first connection, unless all addresses refused the connection.
bool Route::waits(const PendingCall& call, const AgentCore& core, const Error& reason) const {
  if (call.wait_for_ready()) return true;
  return call.resumable() && reason.kind() != ErrorKind::not_found && !(refused_ && all_refused_) &&
         loop()->now() < later(call.made(), core.options().handshake_timeout);
}

// There is no backoff for a name without an address: the name is looked up again for each call.
bool Route::in_backoff() const { return refusal_ && loop()->now() < not_before_; }

void Route::end_backoff() {
  failed_dials_ = 0;
  refusal_.reset();
  if (redial_ != 0) loop()->cancel(std::exchange(redial_, 0));
}

void Route::dial_later() {
  if (redial_ != 0) return;
  redial_ = loop()->schedule(not_before_, while_alive(this, [](Route& self) {
                               self.redial_ = 0;
                               self.prune();
                               self.dial();
                             }));
}

void Route::dial_ended(const Error& reason) {
  place_handed_in();  // calls that were made before this failure also fail
  dialling_ = false;
  wanted_ = false;
  const auto core = core_.lock();
  const bool up = link_ != nullptr && link_->usable();  // true: the peer has connected meanwhile
  if (core == nullptr || core->ended() || up) return fail_waiting(reason);
  reach_ = Reach::failing;
  ++failed_dials_;
  const auto salt = std::hash<std::string>{}(name_) + failed_dials_;
  not_before_ = later(loop()->now(), backoff_wait(core->options().connect_backoff, failed_dials_,
                                                  jitter(core->id().incarnation, salt)));
  refusal_.reset();
  if (reason.kind() != ErrorKind::not_found) refusal_ = reason;
  if (!is_transient(reason.kind())) {
    if (rejoining_) dial_later();
    return fail_waiting(reason);
  }
  // Calls fail after the queue was updated, because the end of a call may cause another call.
  std::vector<std::shared_ptr<PendingCall>> failed;
  for (auto& call : std::exchange(waiting_, {})) {
    if (call->finished()) continue;
    if (waits(*call, *core, reason)) {
      waiting_.push_back(std::move(call));
    } else {
      failed.push_back(std::move(call));
    }
  }
  if (!waiting_.empty() || rejoining_) dial_later();
  // An overloaded host may refuse a connection once, so two consecutive refusals are needed.
  refused_dials_ = refused_ && all_prove_ ? refused_dials_ + 1 : 0;
  if (rejoining_ && refused_dials_ >= 2)
    for (const AgentId& life : core->sessions().absent(peer_name()))
      core->lose(life, Error(ErrorKind::peer_lost, life.name + " no longer listens: " + reason.what()));
  for (const auto& call : failed) fail(*call, reason);
}

void Route::connected(Result<std::shared_ptr<Connection>> made) {
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) {
    const Error reason(ErrorKind::shut_down, "this agent has shut down");
    if (made.ok()) made.value()->close(reason);
    return dial_next(reason);
  }
  try {
    core->adopt(std::move(made).get(), shared_from_this());
  } catch (const Error& error) {
    note_failure(error);
    dial_next(error);
  } catch (const std::exception& error) {
    note_failure(error);
    dial_next(Error(ErrorKind::unavailable, error.what()));
  }
}

// If the peer is on this host and in its network namespace, and an address of this host refuses a connection,
// no process listens there, which proves the peer's end. Other refusals prove nothing, because a load
// balancer or a firewall may have answered, or the address may be that of another agent. Shared memory may be
// missing for other reasons.
void Route::note_failure(const std::exception& error) {
  if (dialled_.scheme == "shm") return;
  const auto core = core_.lock();
  const auto* refusal = dynamic_cast<const ConnectionRefused*>(&error);
  const bool proves = refusal != nullptr && refusal->on_this_host() && core != nullptr &&
                      core->sessions().is_absent_on_this_host(peer_name());
  const bool loopback =
      dialled_.host == "localhost" || dialled_.host == "::1" || dialled_.host.starts_with("127.");
  const bool refused = refusal != nullptr && (!loopback || proves);
  refused_ = refused_ || refused;
  all_refused_ = all_refused_ && refused;
  all_prove_ = all_prove_ && proves;
}

void Route::dial_failed(const Error& reason) {
  all_refused_ = all_prove_ = false;
  dial_next(reason);
}

void Route::link_up(std::shared_ptr<Link> link, bool dialled) {
  if (dialled) dialling_ = false;
  wanted_ = rejoining_ = false;
  reach_ = Reach::connected;
  end_backoff();
  // A new incarnation replaces an earlier incarnation, whose end may not have been detected yet.
  if (link_ == nullptr || !link_->usable() || link_->peer() != link->peer()) {
    link_ = std::move(link);
    identify(link_->peer());
  }
  for (auto& call : std::exchange(waiting_, {})) {
    if (call->finished()) continue;
    if (call->connect_within()) watch_time(call, false);
    link_->loop()->dispatch([link = link_, call] { link->send(call); });
  }
}

void Route::link_down(const std::shared_ptr<Link>& link, const std::shared_ptr<Link>& other) {
  if (link_ != link) return;
  const auto core = core_.lock();
  link_ = core != nullptr && !core->ended() ? other
                                            : nullptr;  // null during shutdown: no further end is reported
  if (link_ != nullptr) return identify(link_->peer());
  reach_ = Reach::idle;
}

void Route::shut_down(const Error& reason) {
  rejoining_ = false;
  end_backoff();
  fail_waiting(reason);
  link_ = nullptr;
}

void Route::fail_waiting(const Error& reason) {
  for (auto& call : std::exchange(waiting_, {})) fail(*call, reason);
}

void Route::fail(PendingCall& call, const Error& reason) const {
  const auto core = core_.lock();
  if (const auto cause = core == nullptr ? std::nullopt : core->job_error_of_ends()) {
    call.fail(*cause);
    return;
  }
  call.fail(
      Error(reason.kind(), peer_name() + ": " + call.method() + ": " + reason.what(), Execution::not_sent));
}

}  // namespace weft::rpc
