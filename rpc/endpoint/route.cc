// The states of a route:
//
//   idle       -> dialling    a call waits, connect() was called, or the peer is absent (rejoin())
//   dialling   -> idle        this dial has connected the peer, or has found this agent itself; or it has
//                             failed, and the peer has connected meanwhile, or this agent has ended
//   dialling   -> pausing     no address has led to the peer, or it is leaving
//   pausing    -> redialling  the pause has ended, and the route is still needed; or a call or connect()
//                             needs it, and no call has failed with the dial before
//   pausing    -> idle        there are new addresses, the peer has connected or is absent, or this agent
//                             ends
//   redialling -> idle, pausing   as dialling
//
// A route that nobody needs stays in `pausing`. Calls without a session wait in all states, except while
// refuses().
#include <weft/rpc/endpoint/route.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/shm/companion.h>
#include <weft/rpc/transport/transport.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// Whether a later attempt may succeed without a change on this side, because the peer starts, the network
// recovers, or the next incarnation of the peer listens.
bool is_transient(ErrorKind kind) {
  static constexpr ErrorKind transient[] = {ErrorKind::unavailable,       ErrorKind::peer_lost,
                                            ErrorKind::shut_down,         ErrorKind::lease_lost,
                                            ErrorKind::not_found,         ErrorKind::deadline_exceeded,
                                            ErrorKind::resource_exhausted};
  return std::ranges::find(transient, kind) != std::end(transient);
}

Error gone(const AgentId& peer) { return {ErrorKind::peer_lost, to_string(peer) + " is gone"}; }

}  // namespace

Route::Route(const std::shared_ptr<AgentCore>& core, std::shared_ptr<Loop> loop, std::string name,
             std::vector<Address> addresses, bool is_to_visitor)
    : CallRoute(std::move(loop), core->options().retry_budget),
      core_(core),
      name_(std::move(name)),
      is_to_visitor_(is_to_visitor),
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

// A peer that is leaving accepts no new calls, but its next incarnation may.
std::shared_ptr<Session> Route::session_for(const PendingCall& call) const {
  if (session_ == nullptr || session_->is_over()) return nullptr;
  if (call.only() != nullptr) return *call.only() == session_->peer() ? session_ : nullptr;
  return session_->is_leaving() && !call.control() ? nullptr : session_;
}

void Route::submit(std::shared_ptr<PendingCall> call) {
  std::shared_ptr<Session> session;
  std::shared_ptr<Route> own;
  bool is_first = false;
  {
    MutexLock lock(mutex_);
    own = own_;
    if (own_ == nullptr && !has_waiting_) {
      session = session_for(*call);
      is_first = loop()->running_here();
    }
    if (own_ == nullptr && session == nullptr && !is_first) {
      submitted_.push_back(call);
      has_waiting_ = true;
    }
  }
  if (own != nullptr) return own->submit(std::move(call));
  if (session != nullptr) return session->submit(std::move(call));
  if (is_first) return place(std::move(call));
  loop()->post([self = shared_from_this(), kept = std::move(call)] { self->place_submitted(); });
}

// Takes one call at a time, because placing a call may run code that makes further calls.
void Route::place_submitted() {
  for (;;) {
    std::shared_ptr<PendingCall> call;
    {
      MutexLock lock(mutex_);
      if (submitted_.empty()) {
        has_waiting_ = !waiting_.empty();
        return;
      }
      call = submitted_.front().lock();
      submitted_.pop_front();
    }
    if (call != nullptr) place(std::move(call));
  }
}

void Route::place(std::shared_ptr<PendingCall> call) {
  if (call->finished()) return;
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) return call->lose(ErrorKind::shut_down, "this agent has shut down");
  if (core->job_ended()) return void(call->fail(*core->job_error()));
  if (const auto own = this->own()) return own->submit(std::move(call));
  std::shared_ptr<Session> session;
  {
    MutexLock lock(mutex_);
    session = session_for(*call);
  }
  // The route leads to the latest known incarnation of that name. An older or a newer incarnation may also be
  // connected.
  if (session == nullptr && call->only() != nullptr) session = core->sessions().find(*call->only());
  if (session == nullptr && call->only() == nullptr && name_ != core->id().name) session = take_latest(*core);
  if (session != nullptr) return session->submit(std::move(call));
  if (call->only() != nullptr && core->sessions().is_gone(*call->only()))
    return fail(*call, gone(*call->only()));
  // Control calls serve other calls, which have ended with the session, so a control call never connects. An
  // exception is the agent itself, to which it connects at the first use.
  if (call->control() && name_ != core->id().name)
    return call->lose(ErrorKind::peer_lost, "the peer is gone");
  if (refuses() && !waits(*call, *core, *refusal_)) {
    const std::chrono::duration<double> left = not_before_ - loop()->now();
    return fail(*call, Error(refusal_->kind(), std::string(refusal_->what()) +
                                                   "; the next attempt to connect is due in " +
                                                   std::to_string(left.count()) + " s"));
  }
  PendingCall::watch_time(call, loop(), true);
  if (waiting_.size() >= prune_at_) prune();
  waiting_.push_back(std::move(call));
  {
    MutexLock lock(mutex_);
    has_waiting_ = true;
  }
  dial();
}

// The latest incarnation has ended, while an earlier one, which had been taken for replaced, is connected.
std::shared_ptr<Session> Route::take_latest(AgentCore& core) {
  auto session = core.sessions().latest(peer_name());
  if (session == nullptr || session->is_leaving()) return nullptr;
  identify(session->peer());
  MutexLock lock(mutex_);
  return session_ = std::move(session);
}

// Removes calls that have ended. Called when the queue has doubled since the last time, because a search for
// each call that ends would cost O(n * n) for n calls.
void Route::prune() {
  std::erase_if(waiting_, [](const auto& call) { return call->finished(); });
  prune_at_ = std::max<std::size_t>(64, 2 * waiting_.size());
}

void Route::cancel(std::shared_ptr<PendingCall> call) {
  if (call->finished()) return;
  loop()->post([call = std::move(call)] { call->give_up(ErrorKind::cancelled, "cancelled by the caller"); });
}

void Route::learn(std::vector<Address> addresses) {
  if (addresses.empty() || addresses == addresses_) return;
  addresses_ = std::move(addresses);
  end_pause();  // because no failure of the new addresses is known
  if (is_dialling() || (waiting_.empty() && !is_wanted_)) return;
  not_before_ = loop()->now();
  dial_later();  // later, because a new link may be reported first
}

void Route::forget(const AgentId& peer) {
  loop()->post([self = shared_from_this(), peer] {
    MutexLock lock(self->mutex_);
    if (self->identity_ == nullptr || *self->identity_ != peer) return;
    self->identity_ = nullptr;
    if (!Address::looks_like(self->name_)) self->addresses_.clear();
  });
}

void Route::rejoin() {
  loop()->post([self = shared_from_this()] {
    {
      MutexLock lock(self->mutex_);
      if (self->session_ != nullptr && self->session_->is_connected()) return;  // it may be leaving
    }
    self->is_rejoining_ = true;
    self->proven_dials_ = 0;
    self->end_pause();
    self->dial();
  });
}

void Route::end_of(const AgentId& peer) {
  loop()->post(while_alive(this, [peer](Route& self) {
    self.is_rejoining_ = false;
    for (const auto& call : std::vector(self.waiting_.begin(), self.waiting_.end()))
      if (call->only() != nullptr && *call->only() == peer) self.fail(*call, gone(peer));
  }));
}

void Route::connect() {
  if (const auto own = this->own()) return own->connect();
  if (is_wanted_.exchange(true)) return;
  loop()->post([self = shared_from_this()] {
    if (self->is_connected()) self->is_wanted_ = false;
    self->dial();
  });
}

void Route::dial() {
  const bool is_needed = !waiting_.empty() || is_wanted_;
  if (is_dialling() || !(is_needed || is_rejoining_)) return;
  const auto core = core_.lock();
  if (core == nullptr) return;
  if (refuses()) return dial_later();
  if (redial_ != 0) loop()->cancel(std::exchange(redial_, 0));
  if (is_needed && is_rejoining_ && !refusal_) failed_dials_ = 0;  // they have concerned no call
  state_ = state_ == State::pausing ? State::redialling : State::dialling;
  const Error nowhere(ErrorKind::not_found, "this agent knows no address of '" + name_ + "'");
  if (!addresses_.empty()) return dial_all(*core, nowhere);
  core->routes().find_addresses(name_, [self = shared_from_this(), nowhere](std::vector<Address> found) {
    self->loop()->post([self, nowhere, found = std::move(found)] {
      self->learn(found);
      const auto live = self->core_.lock();
      if (live == nullptr) return self->dial_next(nowhere);
      self->dial_all(*live, nowhere);
    });
  });
}

// Dials each address, after its companion in shared memory.
void Route::dial_all(const AgentCore& core, const Error& nowhere) {
  untried_.clear();
  outcome_ = {};
  const bool same_host = core.options().same_host && core.options().credentials == nullptr;
  for (const Address& address : addresses_) {
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
    transport->connect(address, loop(), core->connection_options(expected_agent()),
                       [self = shared_from_this()](Result<std::shared_ptr<Connection>> made) {
                         self->dialled(std::move(made));
                       });
  } catch (const Error& error) {
    dial_next(error);
  }
}

// Whether the call still waits for its first connection after an attempt has failed with this error. A call
// to one incarnation, which its caller knows to exist, waits for a while, unless all addresses have refused
// or this agent shuts down.
bool Route::waits(const PendingCall& call, const AgentCore& core, const Error& reason) const {
  if (call.wait_for_ready()) return true;
  return call.only() != nullptr && !call.fail_fast() && !core.draining() &&
         reason.kind() != ErrorKind::not_found &&
         !(outcome_.refused != 0 && outcome_.refused == outcome_.failed) &&
         loop()->now() < later(call.made(), core.options().handshake_timeout);
}

// Whether calls fail with refusal_ without another dial. A dial that has found no address sets none, so the
// name is looked up again for each call.
bool Route::refuses() const { return refusal_ && loop()->now() < not_before_; }

void Route::end_pause() {
  if (state_ == State::pausing) state_ = State::idle;
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
  place_submitted();  // calls that were made before this failure also fail
  const bool was_needed = !waiting_.empty() || is_wanted_;
  is_wanted_ = false;
  const auto core = core_.lock();
  // The peer may have connected meanwhile.
  const bool is_over = core == nullptr || core->ended() || is_connected();
  state_ = is_over ? State::idle : State::pausing;
  if (is_over) return fail_waiting(reason);
  ++failed_dials_;
  const auto salt = std::hash<std::string>{}(name_) + failed_dials_;
  not_before_ = later(loop()->now(), backoff_wait(core->options().connect_backoff, failed_dials_,
                                                  jitter(core->id().incarnation, salt)));
  refusal_.reset();
  if (was_needed && reason.kind() != ErrorKind::not_found) refusal_ = reason;
  if (!is_transient(reason.kind())) {
    if (is_rejoining_) dial_later();
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
  if (!waiting_.empty() || is_rejoining_) dial_later();
  // An overloaded host may refuse a connection once, so two consecutive refusals are needed.
  proven_dials_ = outcome_.proven != 0 && outcome_.proven == outcome_.failed ? proven_dials_ + 1 : 0;
  if (is_rejoining_ && proven_dials_ >= 2)
    for (const AgentId& peer : core->sessions().absent(peer_name()))
      core->lose(peer, Error(ErrorKind::peer_lost, peer.name + " no longer listens: " + reason.what()));
  for (const auto& call : failed) fail(*call, reason);
}

void Route::dialled(Result<std::shared_ptr<Connection>> made) {
  const auto core = core_.lock();
  if (core == nullptr || core->ended()) {
    const Error reason(ErrorKind::shut_down, "this agent has shut down");
    if (made.ok()) made.value()->close(reason);
    return dial_next(reason);
  }
  try {
    core->adopt(std::move(made).get(), shared_from_this());
  } catch (const std::exception& error) {
    note_failure(error);
    const auto* known = dynamic_cast<const Error*>(&error);
    dial_next(known != nullptr ? *known : Error(ErrorKind::unavailable, error.what()));
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
  ++outcome_.failed;
  if (refusal != nullptr && (!loopback || proves)) ++outcome_.refused;
  if (proves) ++outcome_.proven;
}

void Route::dial_failed(const Error& reason) {
  if (own() != nullptr) return;
  ++outcome_.failed;
  dial_next(reason);
}

void Route::connected(std::shared_ptr<Session> session, bool dialled) {
  const bool is_leaving = session->is_leaving();
  bool is_next = false;
  {
    MutexLock lock(mutex_);
    // A new incarnation replaces an earlier incarnation, whose end may not have been detected yet.
    is_next = !is_leaving || session_ == nullptr || session_->is_over();
    if (is_next) session_ = session;
  }
  if (is_next) identify(session->peer());
  is_rejoining_ = false;
  // The session continues, but calls that wait for a connection wait for the next incarnation.
  if (is_leaving) {
    const auto core = core_.lock();
    // end_of() reaches only the route to the name.
    if (core != nullptr && core->routes().find(session->peer().name).get() == this)
      is_rejoining_ = std::ranges::any_of(core->sessions().absent(session->peer().name),
                                          [&](const AgentId& peer) { return peer != session->peer(); });
    if (dialled) dial_ended(Error(ErrorKind::shut_down, "the peer is shutting down"));
    return;
  }
  if (dialled) state_ = State::idle;
  hand_over_to(*session);
}

// Calls that are made meanwhile wait behind these.
template <class Next>
void Route::hand_over_to(Next& next) {
  is_wanted_ = false;
  end_pause();
  for (auto& call : std::exchange(waiting_, {})) {
    if (call->finished()) continue;
    call->clear_timer();
    next.submit(std::move(call));
  }
  place_submitted();
}

void Route::lead_to(const std::shared_ptr<Route>& own) {
  state_ = State::idle;
  untried_.clear();
  identify(*own->identity());
  {
    MutexLock lock(mutex_);
    own_ = own;
  }
  hand_over_to(*own);
}

std::shared_ptr<Route> Route::own() const {
  MutexLock lock(mutex_);
  return own_;
}

bool Route::is_connected() const {
  MutexLock lock(mutex_);
  return session_ != nullptr && session_->is_connected() && !session_->is_leaving();
}

Route::Reach Route::reach() const {
  if (const auto own = this->own()) return own->reach();
  const State state = state_;
  MutexLock lock(mutex_);
  const bool has_session = session_ != nullptr && !session_->is_over();
  if (has_session && session_->is_connected()) return Reach::connected;
  if (state == State::pausing || state == State::redialling) return Reach::failing;
  return state == State::dialling || has_session ? Reach::connecting : Reach::idle;
}

void Route::shut_down(const Error& reason) {
  is_rejoining_ = false;
  end_pause();
  fail_waiting(reason);
  MutexLock lock(mutex_);
  session_ = nullptr;
  own_ = nullptr;
}

void Route::fail_waiting(const Error& reason) {
  for (auto& call : std::exchange(waiting_, {})) fail(*call, reason);
}

void Route::fail(PendingCall& call, const Error& reason) const {
  const auto core = core_.lock();
  const auto cause = core == nullptr ? std::nullopt : core->job_error_of_ends();
  call.fail(cause ? *cause : Error(reason.kind(), call.title() + ": " + reason.what(), Execution::not_sent));
}

}  // namespace weft::rpc
