// Link: handshake, incoming frames, heartbeats, and the end of the connection.
#include <weft/rpc/endpoint/link.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/internal/socket_user.h>

#include <unistd.h>

#include <limits>
#include <map>

namespace weft::rpc {
namespace {

constexpr std::string_view certified = "cert:";  // the prefix of an identity that a certificate proves
constexpr auto agent_ended =
    ErrorKind::unavailable;  // the kind in the goodbye of an agent that ends; peer_lost: its job has failed

template <class Number>
Number said(Number limit) {
  return limit != 0 ? limit : std::numeric_limits<Number>::max();
}

template <class Call>
std::vector<Call> values_of(std::map<std::uint64_t, Call> by_id) {
  std::vector<Call> calls;
  calls.reserve(by_id.size());
  for (auto& [id, call] : by_id) calls.push_back(std::move(call));
  return calls;
}

}  // namespace

Link::Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
           std::shared_ptr<Route> route)
    : Carrier(number, connection->loop()),
      core_(std::move(core)),
      connection_(std::move(connection)),
      lanes_(std::make_shared<LinkLanes>(core_, connection_, route != nullptr)),
      route_(std::move(route)),
      handshaking_(route_ == nullptr),
      pending_(core_->sessions().id_seed()),
      incoming_(pending_.seed()),
      returns_(core_->options().limits.calls, core_->options().limits.in_flight) {}

Link::~Link() = default;

void Link::open() {
  const auto connection = connection_;  // keeps it alive until this function returns
  if (route_ == nullptr && core_->draining()) {
    // A draining agent accepts no new peers. A call that waits for this connection fails with not_sent.
    connection->start(shared_from_this());
    connection->send(OutgoingMessage::goodbye(std::nullopt));
    return finish(Error(ErrorKind::shut_down, "this agent is shutting down"));
  }
  HelloInfo hello;
  hello.version_min = own_protocol.oldest;
  hello.version_max = own_protocol.newest;
  hello.features = own_protocol.features;
  hello.name = core_->id().name;
  hello.incarnation = core_->id().incarnation;
  hello.addresses = core_->stated_addresses(connection->hosts());
  hello.max_calls = core_->options().limits.calls;
  hello.max_bytes = core_->options().limits.in_flight;
  hello.max_header = core_->options().limits.header;
  hello.max_body = core_->options().limits.message;
  hello.max_attachments = core_->options().limits.attachments;
  hello.lanes = lanes_->offered();
  hello.lane_key = lanes_->key();
  hello.process = core_->sessions().own_process();
  OutboundFrame frame = OutgoingMessage::hello(hello);
  frame.sent = while_alive(this, [](Link& self) {
    self.hello_left_ = true;
    if (self.lane_ && !self.ended_) self.become_lane();
  });
  connection->send(std::move(frame));
  handshake_timer_ =
      loop()->schedule(later(loop()->now(), core_->options().handshake_timeout), [self = shared_from_this()] {
        self->handshake_timer_ = 0;
        self->close(
            Error(ErrorKind::deadline_exceeded,
                  "the peer did not finish the handshake within " +
                      std::to_string(
                          std::chrono::duration<double>(self->core_->options().handshake_timeout).count()) +
                      " s (AgentOptions::handshake_timeout)"));
      });
  connection->start(shared_from_this());
}

void Link::on_frame(InboundFrame&& frame) {
  if (ended_) return;
  std::unique_lock<std::mutex> turn;
  if (const auto session = session_of(frame.prefix)) {
    turn = session->turn();
    if (!arrive(frame.prefix)) return count_repeated(std::move(frame));
  }
  const auto charge = std::move(frame.charge);  // kept until the call has its own charge
  auto message = std::make_shared<IncomingMessage>(std::move(frame), core_->options().limits);
  AgentCounters::count(core_->counters().bytes_received, message->bytes());
  const Prefix& prefix = message->prefix();
  if (!ready_) {
    if (lane_) throw Error(ErrorKind::protocol_error, "bad frame: more than a lane's first frame");
    if (prefix.kind == FrameKind::goodbye) {
      const auto reason = message->goodbye();
      // Uses finish() and not close(), because the peer may have closed the connection after this frame.
      return finish(reason ? Error(reason->kind(), std::string("the peer says: ") + reason->what())
                           : Error(ErrorKind::shut_down, "the peer is shutting down"));
    }
    if (prefix.kind == FrameKind::lane && route_ == nullptr) {
      lane_ = message->lane();
      return become_lane();
    }
    if (prefix.kind != FrameKind::hello)
      throw Error(ErrorKind::protocol_error, "bad frame: expected a Hello, found a frame of kind " +
                                                 std::to_string(static_cast<int>(prefix.kind)));
    return on_hello(*message);
  }
  switch (prefix.kind) {
    case FrameKind::hello:
      throw Error(ErrorKind::protocol_error, "bad frame: a second Hello");
    case FrameKind::request:
      return on_request(std::move(message), charge != nullptr);
    case FrameKind::reply:
      return on_reply(std::move(message));
    case FrameKind::cancel:
      return on_cancel(prefix.call_id, session_of(prefix) != nullptr);
    case FrameKind::goodbye:
      if (const auto reason = message->goodbye()) {
        end_is_proven_ = true;
        if (reason->kind() == ErrorKind::peer_lost)  // the job of the peer has failed
          for (const auto& hook : core_->hooks().all()) hook->peer_job_failed(peer_, *reason);
        const ErrorKind kind = reason->kind() == agent_ended ? ErrorKind::peer_lost : reason->kind();
        const std::string text = std::string("the peer says: ") + reason->what();
        if (kind == ErrorKind::permission_denied || kind == ErrorKind::unsupported)
          for (auto& [id, asked] :
               pending_.take_all())  // the peer has refused the Hello: it reads no request
            if (asked.call != nullptr)
              asked.call->fail(
                  Error(kind, peer_.name + ": " + asked.call->method() + ": " + text + " (was not sent)",
                        Execution::not_sent));
        return close(Error(kind, text));
      }
      peer_leaving_ = true;
      return core_->log().write(LogLevel::debug, peer_.name + " is leaving",
                                {{log_fields::peer, peer_.name}});
    case FrameKind::ping:
      spoken_ = true;
      return send_beat(FrameKind::pong, prefix.call_id);
    case FrameKind::pong:
      return;
    case FrameKind::credit:
      return on_credit(message->credit());
    case FrameKind::lane:
      return lanes_->on_frame(message->lane());
    case FrameKind::received:
      return on_received(prefix.call_id);
    case FrameKind::resume:
      expected_ = prefix.call_id;
      return;
  }
}

void Link::on_hello(IncomingMessage& message) {
  const HelloInfo hello = message.hello();
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
  const std::string identity = connection_->identity();
  if (identity.starts_with(certified) && identity.substr(certified.size()) != hello.name)
    return refuse_peer(
        Error(ErrorKind::permission_denied, "the certificate is for '" + identity.substr(certified.size()) +
                                                "', but the peer calls itself '" + hello.name + "'"));
  if (!check_user(hello.name, identity)) return;
  if (route_ != nullptr && !Address::looks_like(route_->name()) && hello.name != route_->name())
    return finish(Error(ErrorKind::unavailable,
                        "'" + hello.name + "' was found at the address of '" + route_->name() + "'"));
  const AgentId peer{hello.name, hello.incarnation};
  if (const auto gone = core_->links().forgotten(peer)) return expel(*gone);
  if (!admit(peer, hello, identity)) return;
  caller_ = std::make_shared<const Caller>(Caller{peer_, identity, connection_->describe()});
  end_handshake();
  loop()->cancel(std::exchange(handshake_timer_, 0));
  window_.grant(hello.max_calls, hello.max_bytes);
  peer_limits_.header = said(hello.max_header);
  peer_limits_.message = said(hello.max_body);
  peer_limits_.attachments = said(hello.max_attachments);
  ready_ = true;
  await_beat();
  core_->link_ready(shared_from_this(), route_, hello);
  if (ended_) return;
  lanes_->peer_known(identity);
  if (route_ != nullptr)
    lanes_->dial(hello, route_->dialled(),
                 Address::looks_like(route_->name()) ? std::string() : route_->name());
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

// Other threads read peer_ and session_ once the link is ready, so both are set before.
bool Link::admit(const AgentId& peer, const HelloInfo& hello, const std::string& identity) {
  try {
    session_ = core_->admit(peer, protocol_, identity, hello.process);
  } catch (const Error& reason) {
    refuse_peer(reason);
    return false;
  }
  peer_ = peer;
  return true;
}

// Called if the accepted connection is a lane of an existing connection.
void Link::become_lane() {
  const auto whole = core_->links().with_lanes(lane_->key);
  if (whole == nullptr)
    return close(Error(ErrorKind::peer_lost, "a lane of an unknown or closed connection"));
  if (!hello_left_) return;
  const std::string identity = connection_->identity();
  auto stream = connection_->take_stream();
  if (stream == nullptr)
    return close(Error(ErrorKind::protocol_error, "bad frame: more than a lane's first frame"));
  whole->loop()->post(
      [whole, info = *lane_, identity, lane = Lanes::Stream{stream.release(), {loop()}}]() mutable {
        try {
          whole->lanes_->take(info, identity, std::move(lane));
        } catch (const Error& bad) {
          whole->close(bad);
        }
      });
  ended_ = true;
  loop()->cancel(std::exchange(handshake_timer_, 0));
  end_handshake();
  core_->link_ended(shared_from_this(), nullptr, Error(ErrorKind::aborted, "it has become a lane"));
  connection_ = nullptr;
  lanes_->end();
}

void Link::end_handshake() {
  if (std::exchange(handshaking_, false)) core_->links().handshake_over(shared_from_this());
}

void Link::await_beat() {
  const auto interval = core_->options().heartbeat.interval;
  if (interval.count() <= 0 || ended_) return;
  beat_due_ = later(loop()->now(), interval);
  heartbeat_ = loop()->schedule(beat_due_, while_alive(this, &Link::beat));
}

// Silence is counted in beats and not in time, so that a period in which this process was stopped counts as
// one beat. One silent beat proves nothing: the other side may send nothing between two beats of this side.
void Link::beat() {
  heartbeat_ = 0;
  if (ended_) return;
  const Heartbeat& heartbeat = core_->options().heartbeat;
  if (const auto now = loop()->now(); now - beat_due_ > heartbeat.interval)
    core_->log().write_late_beat(now, now - beat_due_, heartbeat.interval);
  const std::uint64_t heard = connection_->received_bytes();
  silent_ = heard == std::exchange(heard_, heard) ? silent_ + 1 : 0;
  if (silent_ > 1 && silent_ * heartbeat.interval >= heartbeat.timeout) {
    AgentCounters::count(core_->counters().peers_silent);
    const auto seconds = std::chrono::duration<double>(silent_ * heartbeat.interval).count();
    end_is_proven_ = true;  // the peer was silent for the timeout already, so no absence follows
    return close(Error(ErrorKind::peer_lost,
                       "nothing was received from " + peer_.name + " for " + std::to_string(seconds) + " s"));
  }
  if (unacknowledged_.frames != 0) acknowledge();
  if (!std::exchange(spoken_, false)) send_beat(FrameKind::ping, 0);
  await_beat();
}

// Sends the beat ahead of queued frames, but after the Hello. While a beat is queued, no further beat of its
// kind is queued, so the queue does not grow if a peer sends pings and reads nothing.
void Link::send_beat(FrameKind kind, std::uint64_t id) {
  bool& queued = kind == FrameKind::ping ? ping_queued_ : pong_queued_;
  if (ended_ || std::exchange(queued, true)) return;
  OutboundFrame frame = OutgoingMessage::plain(kind, id);
  frame.sent = while_alive(this, [kind](Link& link) {
    (kind == FrameKind::ping ? link.ping_queued_ : link.pong_queued_) = false;
  });
  hello_left_ ? connection_->send_ahead(std::move(frame)) : connection_->send(std::move(frame));
}

void Link::say_goodbye() {
  if (!ended_ && ready_) connection_->send(OutgoingMessage::goodbye(std::nullopt));
}

void Link::close(const Error& reason) {
  if (const auto connection = connection_) connection->close(reason);
}

void Link::finish(const Error& reason) {
  if (ended_) return;
  const auto connection = connection_;
  connection->finish(reason);
  on_closed(reason);
}

void Link::expel(const Error& reason) {
  if (ended_) return;
  end_is_proven_ = true;
  connection_->send(OutgoingMessage::goodbye(reason));
  finish(Error(ErrorKind::peer_lost, reason.what()));
}

void Link::end_incarnation(const Error& reason) {
  if (!ended_ && ready_)
    connection_->send(OutgoingMessage::goodbye(Error(agent_ended, "its agent has ended")));
  finish(reason);
}

std::vector<std::shared_ptr<PendingCall>> Link::sent() const {
  std::map<std::uint64_t, std::shared_ptr<PendingCall>> by_id;
  pending_.for_each([&](std::uint64_t id, const Asked& asked) {
    if (asked.call != nullptr) by_id.emplace(id, asked.call);
  });
  return values_of(std::move(by_id));
}

std::vector<std::shared_ptr<PendingCall>> Link::held() const {
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (std::size_t i = 0; i < held_.size(); ++i) calls.push_back(held_[i]);
  return calls;
}

// The result owns the calls, because a call that ends meanwhile removes itself from `incoming_`.
std::vector<std::shared_ptr<IncomingCall>> Link::incoming() const {
  std::map<std::uint64_t, std::shared_ptr<IncomingCall>> by_id;
  incoming_.for_each([&](std::uint64_t id, const Served& served) {
    if (auto call = served.call.lock()) by_id.emplace(id, std::move(call));
  });
  return values_of(std::move(by_id));
}

void Link::on_closed(const Error& reason) {
  if (ended_.exchange(true)) return;
  if (handshake_timer_ != 0) loop()->cancel(std::exchange(handshake_timer_, 0));
  if (heartbeat_ != 0) loop()->cancel(std::exchange(heartbeat_, 0));
  if (acknowledge_timer_ != 0) loop()->cancel(std::exchange(acknowledge_timer_, 0));
  if (replies_timer_ != 0) loop()->cancel(std::exchange(replies_timer_, 0));
  end_handshake();
  if (route_ == nullptr && !ready_ &&
      (reason.kind() == ErrorKind::permission_denied || reason.kind() == ErrorKind::deadline_exceeded))
    AgentCounters::count(core_->counters().connections_refused);
  const bool usual = reason.kind() == ErrorKind::peer_lost || reason.kind() == ErrorKind::shut_down;
  const std::string way = connection_->describe(), text = way + ": closed: " + reason.what();
  const LogField on{log_fields::connection, way}, peer{log_fields::peer, peer_.name},
      kind_of_it{log_fields::kind, to_string(reason.kind())};
  if (!usual && route_ == nullptr) {
    core_->log().write_some(ready_ ? "connections closed" : "connections refused", loop(), text,
                            {on, peer, kind_of_it});
  } else {
    core_->log().write(usual ? LogLevel::debug : LogLevel::warning, text, {on, peer, kind_of_it});
  }
  const ErrorKind kind = peer_leaving_ || core_->draining()              ? ErrorKind::shut_down
                         : reason.kind() == ErrorKind::shut_down         ? ErrorKind::shut_down
                         : reason.kind() == ErrorKind::permission_denied ? ErrorKind::permission_denied
                         : reason.kind() == ErrorKind::lease_lost        ? ErrorKind::lease_lost
                         : ready_                                        ? ErrorKind::peer_lost
                         : reason.kind() == ErrorKind::peer_lost         ? ErrorKind::unavailable
                                                                         : reason.kind();
  // The connection is lost, but the peer may exist and return.
  const bool may_return = ready_ && kind == ErrorKind::peer_lost && reason.kind() == ErrorKind::peer_lost &&
                          !end_is_proven_ && in_session();
  if (session_ != nullptr) {
    std::vector<std::shared_ptr<PendingCall>> resumable;
    Fifo<std::shared_ptr<PendingCall>> others;
    while (!held_.empty()) {
      auto call = held_.pop();
      if (may_return && call->resumable()) {
        resumable.push_back(std::move(call));
      } else {
        others.push(std::move(call));
      }
    }
    held_ = std::move(others);
    // The session receives these calls before the end of this link is reported, so that a search finds each
    // call in the link or in the session.
    for (const auto& call : incoming())
      if (call->is_resumable()) session_->serve(call->id(), call);
    session_->leave(*this, std::move(resumable));
  }
  core_->link_ended(shared_from_this(), route_, Error(kind, reason.what()), may_return);
  const auto cause = core_->job_error_of_ends();
  awaited_ = 0;
  for (auto& [id, asked] : pending_.take_all())
    if (asked.call != nullptr) asked.call->lose(cause, kind, reason.what());
  while (!held_.empty()) held_.pop()->lose(cause, kind, reason.what());
  // Notifications are served even if their sender has left.
  for (auto& [id, served] : incoming_.take_all())
    if (auto call = served.call.lock();
        call != nullptr && !call->is_notification() && !(call->is_resumable() && in_session()))
      call->cancel();
  while (!delayed_.empty()) serve(delayed_.pop());  // those that were cancelled end at once
  // The connection owns this link until the connection has reported its end. That may never happen if the
  // program's io_context does not run.
  connection_ = nullptr;
  lanes_->end();
}

}  // namespace weft::rpc
