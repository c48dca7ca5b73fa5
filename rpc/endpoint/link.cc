// The states of a link:
//
//   reserved  -> handshake the Hello of the peer has arrived, and the agent knows it
//   handshake -> spare     the Hello of the peer has arrived
//   handshake -> lane      the same, and it is a lane of another link
//   spare     -> in_use    its session uses it
//   spare     -> retired   its session has chosen it, and then another link
//   in_use    -> retired   its session has chosen another link, or has ended
//   retired   -> spare     its session has ended, and the link joins the next one (join_new_session())
//   any       -> ended     the connection has ended, or has become a lane
#include <weft/rpc/endpoint/link.h>

#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/internal/socket_user.h>

#include <unistd.h>

namespace weft::rpc {
namespace {

constexpr std::string_view certified = "cert:";  // the prefix of an identity that a certificate proves
constexpr auto agent_ended =
    ErrorKind::unavailable;  // the kind in the goodbye of an agent that ends; peer_lost: its job has failed

}  // namespace

Link::Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
           std::shared_ptr<Route> route, std::shared_ptr<Link> whole, std::uint64_t lane_key)
    : core_(std::move(core)),
      number_(number),
      loop_(connection->loop()),
      connection_(std::move(connection)),
      route_(std::move(route)),
      is_dialled_(route_ != nullptr || whole != nullptr),
      whole_(std::move(whole)),
      lane_key_(lane_key) {}

void Link::open() {
  const auto connection = connection_;  // keeps it alive until this function returns
  if (!is_dialled_ && core_->draining()) {
    state_ = State::reserved;
  } else {
    send_hello();
  }
  limit_unused_time();
  connection->start(shared_from_this());
}

void Link::send_hello() {
  HelloInfo hello;
  hello.version_min = own_protocol.oldest;
  hello.version_max = own_protocol.newest;
  hello.features = own_protocol.features;
  hello.name = core_->id().name;
  hello.incarnation = core_->id().incarnation;
  hello.addresses = core_->stated_addresses(connection_->hosts());
  hello.max_calls = core_->options().limits.calls;
  hello.max_bytes = core_->options().limits.in_flight;
  hello.max_header = core_->options().limits.header;
  hello.max_body = core_->options().limits.message;
  hello.max_attachments = core_->options().limits.attachments;
  hello.max_replies = Session::replies_in_flight(core_->options().limits);
  hello.lanes = max_lanes_here();
  hello.lane_key = lane_key_;
  hello.process = core_->sessions().own_process();
  OutboundFrame frame = OutgoingMessage::hello(hello);
  frame.sent = while_alive(this, [](Link& self) {
    self.hello_left_ = true;
    if (self.state_ == State::lane) self.become_lane();
  });
  connection_->send(std::move(frame));
}

// Closes the link if its handshake takes too long, or if no session uses it: a surplus connection that its
// dialler has not closed, or one that its session has left.
void Link::limit_unused_time() {
  const auto timeout = core_->options().handshake_timeout;
  unused_timer_ = loop()->schedule(later(loop()->now(), timeout), [self = shared_from_this(), timeout] {
    self->unused_timer_ = 0;
    self->close(self->ready() ? Error(ErrorKind::peer_lost,
                                      "the connection was not used within " + seconds_text(timeout))
                              : Error(ErrorKind::deadline_exceeded,
                                      "the peer did not finish the handshake within " +
                                          seconds_text(timeout) + " (AgentOptions::handshake_timeout)"));
  });
}

// Before the session uses the link, the peer must not send frames of calls.
bool Link::takes(const Prefix& frame) const {
  if (state_ == State::spare)
    throw Error(ErrorKind::protocol_error, "bad frame: a frame of kind " +
                                               std::to_string(static_cast<int>(frame.kind)) +
                                               " before its session uses this connection");
  return state_ == State::in_use;
}

void Link::on_frame(InboundFrame&& frame) {
  if (state_ == State::ended || (frame.header.empty() && !ready())) return;
  if (ready() && (frame.prefix.is_numbered() || frame.prefix.kind == FrameKind::received)) {
    if (!early_.empty()) return void(early_.emplace_back(std::move(frame)));
    if (!takes(frame.prefix)) return;
  }
  deliver(std::move(frame));
}

// What has followed the `resume` arrives now, until the next one.
void Link::decided() {
  loop()->dispatch([self = shared_from_this()] {
    auto& early = self->early_;
    if (early.empty()) return;  // the link has ended
    early.pop_front();
    try {
      while (!early.empty() && early.front()) {
        InboundFrame next = *std::move(early.front());
        early.pop_front();
        if (self->takes(next.prefix)) self->deliver(std::move(next));
      }
    } catch (...) {
      self->close(error_of(std::current_exception()));
    }
  });
}

void Link::deliver(InboundFrame&& frame) {
  if (ready() && frame.prefix.is_numbered()) session_->arrived(frame.prefix);
  if (frame.header.empty()) return session_->on_skipped(*this, frame.prefix);
  const auto charge = std::move(frame.charge);  // kept until the call has its own charge
  auto message = std::make_shared<IncomingMessage>(std::move(frame), core_->options().limits);
  core_->counters().bytes_received.add(message->bytes());
  if (!ready()) return on_first_frame(*message);
  const Prefix& prefix = message->prefix();
  switch (prefix.kind) {
    case FrameKind::hello:
      throw Error(ErrorKind::protocol_error, "bad frame: a second Hello");
    case FrameKind::request:
      return session_->on_request(*this, std::move(message), charge != nullptr);
    case FrameKind::reply:
      return session_->on_reply(std::move(message));
    case FrameKind::cancel:
      return session_->on_cancel(prefix.call_id);
    case FrameKind::credit:
      return session_->on_credit(message->credit());
    case FrameKind::received:
      return session_->on_received(prefix.call_id);
    case FrameKind::resume:
      early_.emplace_back(std::nullopt);
      return session_->on_resume(shared_from_this(), message->resume());
    case FrameKind::goodbye:
      return on_goodbye(message->goodbye());
    case FrameKind::ping:
      beats_.spoke();
      return send_beat(FrameKind::pong, prefix.call_id);
    case FrameKind::pong:
      return;
    case FrameKind::lane:
      return on_lane_step(prefix.call_id);
  }
}

bool Link::awaits(const Prefix& reply) {
  return !early_.empty() || (state_ == State::in_use && session_->awaits(reply.call_id));
}

void Link::on_first_frame(IncomingMessage& message) {
  const Prefix& prefix = message.prefix();
  if (prefix.kind == FrameKind::goodbye) {
    const auto reason = message.goodbye();
    // Uses finish() and not close(), because the peer may have closed the connection after this frame.
    return finish(reason ? Error(reason->kind(), std::string("the peer says: ") + reason->what())
                         : Error(ErrorKind::shut_down, "the peer is shutting down"));
  }
  if (prefix.kind != FrameKind::hello || state_ == State::lane)
    throw Error(ErrorKind::protocol_error, "bad frame: expected a Hello, found a frame of kind " +
                                               std::to_string(static_cast<int>(prefix.kind)));
  on_hello(message);
}

void Link::on_goodbye(const std::optional<Error>& reason) {
  if (!reason) {
    session_->peer_leaves();
    return core_->log().write(LogLevel::debug, peer_.name + " is leaving", {{log_fields::peer, peer_.name}});
  }
  if (reason->kind() == ErrorKind::peer_lost)  // the job of the peer has failed
    for (const auto& hook : core_->hooks().all()) hook->peer_job_failed(peer_, *reason);
  const Error reported(reason->kind() == agent_ended ? ErrorKind::peer_lost : reason->kind(),
                       std::string("the peer says: ") + reason->what());
  close(reported);
  end(reported, false);
}

void Link::on_hello(IncomingMessage& message) {
  hello_ = message.hello();
  const HelloInfo& hello = hello_;
  if (state_ == State::reserved) {
    // A draining agent accepts no new peers. A call that waits for this connection fails with not_sent.
    if (core_->sessions().find({hello.name, hello.incarnation}) == nullptr) {
      connection_->send(OutgoingMessage::goodbye(std::nullopt));
      return finish(Error(ErrorKind::shut_down, "this agent is shutting down"));
    }
    state_ = State::handshake;
    send_hello();
  }
  try {
    protocol_ = negotiate(own_protocol, core_->id().name, hello);
  } catch (const Error& reason) {
    if (reason.kind() != ErrorKind::unsupported) throw;
    return refuse_peer(reason);
  }
  if (hello.name.empty()) throw Error(ErrorKind::protocol_error, "bad frame: a Hello without a name");
  // Calls to this address would reach the peer instead of the agent that listens there.
  if (Address::looks_like(hello.name))
    throw Error(ErrorKind::protocol_error,
                "bad frame: a Hello with the address '" + hello.name + "' as its name");
  identity_ = connection_->identity();
  const std::string& identity = identity_;
  if (identity.starts_with(certified) && identity.substr(certified.size()) != hello.name)
    return refuse_peer(
        Error(ErrorKind::permission_denied, "the certificate is for '" + identity.substr(certified.size()) +
                                                "', but the peer calls itself '" + hello.name + "'"));
  if (!check_user(hello.name, identity)) return;
  if (!is_dialled_) lane_key_ = hello.lane_key;
  if (whole_ != nullptr || lane_key_ != 0) return become_lane();
  if (is_dialled_ && !Address::looks_like(route_->name()) && hello.name != route_->name())
    return finish(Error(ErrorKind::unavailable,
                        "'" + hello.name + "' was found at the address of '" + route_->name() + "'"));
  const AgentId peer{hello.name, hello.incarnation};
  if (const auto gone = core_->links().forgotten(peer)) return expel(*gone);
  if (const auto own = core_->routes().find(core_->id().name);
      is_dialled_ && peer == core_->id() && route_ != own) {
    route_->lead_to(own);
    return finish(Error(ErrorKind::peer_lost, "this agent itself listens there"));
  }
  if (!join_session()) return;
  // Other threads read these once the link is ready.
  peer_ = peer;
  caller_ = std::make_shared<const Caller>(Caller{peer_, identity, connection_->describe()});
  state_ = State::spare;
  core_->links().handshake_over(shared_from_this());
  await_beat();
  core_->link_ready(shared_from_this(), session_, route_, hello);
  if (state_ == State::ended) return;
  if (core_->draining() && !core_->ended()) send_goodbye();  // drain() tells only links that are ready
  offer_lanes();
}

// With the agent itself, and without features::sessions, a session has one connection.
bool Link::join_session() {
  const AgentId peer{hello_.name, hello_.incarnation};
  const bool is_kept = protocol_.has(features::sessions) && peer != core_->id();
  try {
    session_ = core_->sessions().open(peer, identity_, hello_.process, is_kept, [&](std::uint64_t number) {
      return std::make_shared<Session>(core_, peer, loop(), hello_, is_kept, number);
    });
    return true;
  } catch (const Error& refused) {
    refuse_peer(refused);
    return false;
  }
}

void Link::refuse_peer(const Error& reason) {
  connection_->send(OutgoingMessage::goodbye(reason));
  finish(reason);
}

// Simulated connections have no hosts.
bool Link::check_user(const std::string& name, const std::string& identity) {
  if (!core_->same_user() || connection_->in_process() || !connection_->hosts()) return true;
  const std::string own = "uid:" + std::to_string(::geteuid());
  if (identity == own) return true;
  // A peer that dies is not an intruder: its goodbye, or the end of the connection, follows.
  if (identity.empty() && connection_->has_ended()) return false;
  if (identity.empty() && !can_ask_for_users()) {
    finish(
        Error(ErrorKind::unavailable, "handshake with '" + name +
                                          "': this process has no free descriptor to ask for the user of the "
                                          "peer: raise ulimit -n"));
    return false;
  }
  refuse_peer(Error(ErrorKind::permission_denied,
                    "handshake with '" + name + "': it runs as " +
                        (identity.empty() ? "a user that the system does not report" : identity) +
                        ", expected " + own + " as '" + core_->id().name +
                        "' (AgentOptions::same_user): run both as one user, give both credentials, or set "
                        "same_user to false (WEFT_INSECURE=1)"));
  return false;
}

// --- For its session ---

void Link::use() {
  if (state_ == State::ended) return;
  state_ = State::in_use;
  was_used_ = true;
  if (unused_timer_ != 0) loop()->cancel(std::exchange(unused_timer_, 0));
}

void Link::retire() {
  if (state_ == State::ended) return;
  state_ = State::retired;
  was_used_ = true;
  if (unused_timer_ == 0) limit_unused_time();
}

void Link::send(OutboundFrame&& frame) {
  if (state_ == State::ended) return;
  beats_.spoke();
  connection_->send(std::move(frame));
}

void Link::send_soon(OutboundFrame&& frame) {
  loop()->dispatch(
      [self = shared_from_this(), frame = std::move(frame)]() mutable { self->send(std::move(frame)); });
}

void Link::close_soon(const Error& reason) {
  loop()->dispatch([self = shared_from_this(), reason] { self->close(reason); });
}

void Link::join_new_session(const ResumeInfo& info) {
  loop()->post([self = shared_from_this(), info] {
    if (self->state_ == State::ended || !self->join_session()) return;
    self->state_ = State::spare;
    self->core_->link_ready(self, self->session_, self->route_, self->hello_);
    if (info.session == 0) return;
    self->early_.emplace_back(std::nullopt);
    self->session_->on_resume(self, info);
  });
}

// --- Heartbeats ---

void Link::await_beat() {
  const auto interval = core_->options().heartbeat.interval;
  if (interval.count() <= 0 || state_ == State::ended) return;
  beat_due_ = later(loop()->now(), interval);
  heartbeat_ = loop()->schedule(beat_due_, while_alive(this, &Link::beat));
}

void Link::beat() {
  heartbeat_ = 0;
  if (state_ == State::ended) return;
  const Heartbeat& heartbeat = core_->options().heartbeat;
  if (const auto now = loop()->now(); now - beat_due_ > heartbeat.interval)
    core_->log().write_late_beat(now, now - beat_due_, heartbeat.interval);
  const auto silence = beats_.beat(connection_->received_bytes()) * heartbeat.interval;
  if (silence.count() != 0 && silence >= heartbeat.timeout) {
    core_->counters().peers_silent.add();
    const auto seconds = std::chrono::duration<double>(silence).count();
    const Error reason(ErrorKind::peer_lost,
                       "nothing was received from " + peer_.name + " for " + std::to_string(seconds) + " s");
    close(reason);
    return end(reason, false);  // the peer was silent for the timeout already, so no absence follows
  }
  if (state_ == State::in_use) session_->acknowledge();
  if (beats_.needs_ping()) send_beat(FrameKind::ping, 0);
  await_beat();
}

// Sends the beat ahead of queued frames, but after the Hello.
void Link::send_beat(FrameKind kind, std::uint64_t id) {
  if (state_ == State::ended || !beats_.queue(kind)) return;
  OutboundFrame frame = OutgoingMessage::plain(kind, id);
  frame.sent = while_alive(this, [kind](Link& link) { link.beats_.left(kind); });
  hello_left_ ? connection_->send_ahead(std::move(frame)) : connection_->send(std::move(frame));
}

// --- Ends ---

void Link::send_goodbye() {
  if (ready()) connection_->send(OutgoingMessage::goodbye(std::nullopt));
}

void Link::close(const Error& reason) {
  if (const auto connection = connection_) connection->close(reason);
}

void Link::finish(const Error& reason, bool may_return) {
  if (state_ == State::ended) return;
  const auto connection = connection_;
  connection->finish(reason);
  end(reason, may_return);
}

void Link::expel(const Error& reason) {
  if (state_ == State::ended) return;
  connection_->send(OutgoingMessage::goodbye(reason));
  finish(Error(ErrorKind::peer_lost, reason.what()), false);
}

void Link::end_incarnation(const Error& reason) {
  if (ready()) connection_->send(OutgoingMessage::goodbye(Error(agent_ended, "its agent has ended")));
  finish(reason);
}

void Link::log_end(const Error& reason, bool was_ready) const {
  const bool usual = reason.kind() == ErrorKind::peer_lost || reason.kind() == ErrorKind::shut_down;
  const std::string way = connection_->describe(), text = way + ": closed: " + reason.what();
  const LogField on{log_fields::connection, way}, peer{log_fields::peer, peer_.name},
      kind{log_fields::kind, to_string(reason.kind())};
  if (!usual && !is_dialled_)
    return core_->log().write_some(was_ready ? "connections closed" : "connections refused", loop(), text,
                                   {on, peer, kind});
  core_->log().write(usual ? LogLevel::debug : LogLevel::warning, text, {on, peer, kind});
}

ErrorKind Link::kind_of_end(const Error& reason, bool may_return) const {
  // A peer that is leaving may return too: its calls in flight go on.
  const bool is_lost = reason.kind() == ErrorKind::peer_lost && !core_->ended();
  if (session_ != nullptr &&
      (session_->is_leaving() ? !(is_lost && may_return) : core_->draining() && !is_lost))
    return ErrorKind::shut_down;
  switch (reason.kind()) {
    case ErrorKind::shut_down:
    case ErrorKind::permission_denied:
    case ErrorKind::lease_lost:
    case ErrorKind::unsupported:
      return reason.kind();
    case ErrorKind::peer_lost:
    case ErrorKind::deadline_exceeded:  // of the handshake, not of a call
      return ready() ? ErrorKind::peer_lost : ErrorKind::unavailable;
    default:
      return ready() ? ErrorKind::peer_lost : reason.kind();
  }
}

void Link::end(const Error& reason, bool may_return) {
  if (state_ == State::ended) return;
  const bool was_ready = ready();
  const Error outcome(kind_of_end(reason, may_return), reason.what());
  state_ = State::ended;
  early_.clear();
  for (Loop::TimerId* timer : {&unused_timer_, &heartbeat_})
    if (*timer != 0) loop()->cancel(std::exchange(*timer, 0));
  if (!is_dialled_ && !was_ready &&
      (reason.kind() == ErrorKind::permission_denied || reason.kind() == ErrorKind::deadline_exceeded))
    core_->counters().connections_refused.add();
  core_->links().remove(shared_from_this());
  if (!was_ready && route_ != nullptr) route_->dial_failed(outcome);
  if (was_ready)
    session_->lost(
        shared_from_this(), outcome,
        may_return && outcome.kind() == ErrorKind::peer_lost && reason.kind() == ErrorKind::peer_lost);
  log_end(reason, was_ready);  // after that, no call uses the link
  whole_ = nullptr;
  lanes_.clear();
  // The connection owns this link until the connection has reported its end. That may never happen if the
  // program's io_context does not run. Last, because the link may end with the connection.
  const auto connection = std::exchange(connection_, nullptr);
}

}  // namespace weft::rpc
