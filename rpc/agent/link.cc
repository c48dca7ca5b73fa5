#include <weft/rpc/agent/link.h>

#include <weft/rpc/agent/agent_core.h>
#include <weft/rpc/agent/route.h>

#include <limits>
#include <map>

namespace weft::rpc {
namespace {

constexpr std::string_view certified = "cert:";  // of an identity
constexpr auto agent_ended =
    ErrorKind::unavailable;  // the reason of a goodbye. peer_lost: its job has failed

// When accepted frames are acknowledged. A resumable request that is sent acknowledges all of them, and the
// reply to one those before it. Otherwise: from the first pair of limits on, the acknowledgement leaves with
// the next frame; at the second pair, at once; from large_bytes on, after acknowledge_after. Fewer frames
// wait for the heartbeat.
constexpr std::uint64_t few_frames = 32, few_bytes = 1 << 20;
constexpr std::uint64_t many_frames = 256, many_bytes = 4 << 20;
constexpr std::uint64_t large_bytes = 1024;
constexpr auto acknowledge_after = std::chrono::milliseconds{20};
// A resumable notification ends when it has left, if its attachments are copied: to wait for the
// acknowledgement would take longer than to copy so much.
constexpr std::uint64_t copied_bytes = 64 << 10;
constexpr std::uint64_t few_unsent_bytes = 1024;  // a hello, acknowledgements: less than answers that pile up

// In place of a method that is not served: layers above still read what the call carries, and it is they who
// end what depends on it. The caller knows the method's name; the log of a notification has the id alone.
std::shared_ptr<const MethodEntry> no_method(std::uint64_t id) {
  MethodEntry entry;
  entry.non_blocking = true;
  entry.run = [id](std::shared_ptr<IncomingCall> call) {
    const std::string which = call->is_notification() ? " (id " + std::to_string(id) + ")" : "";
    call->refuse(
        std::make_exception_ptr(Error(ErrorKind::not_found, "no such method on this agent" + which)));
  };
  return std::make_shared<const MethodEntry>(std::move(entry));
}

template <class Number>
Number said(Number limit) {
  return limit != 0 ? limit : std::numeric_limits<Number>::max();
}

template <class Call>
std::vector<Call> values_of(std::map<std::uint64_t, Call> by_id) {
  std::vector<Call> calls;
  for (auto& [id, call] : by_id) calls.push_back(std::move(call));
  return calls;
}

}  // namespace

Link::Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
           std::shared_ptr<Route> route)
    : core_(std::move(core)),
      number_(number),
      loop_(connection->loop()),
      connection_(std::move(connection)),
      lanes_(std::make_shared<LinkLanes>(core_, connection_, route != nullptr)),
      route_(std::move(route)),
      handshaking_(route_ == nullptr),
      pending_(core_->id_seed()),
      incoming_(pending_.seed()),
      returns_(core_->options().limits.calls, core_->options().limits.in_flight) {}

Link::~Link() = default;

void Link::open() {
  const auto connection = connection_;  // which lives to the end of this, whatever it reports
  if (route_ == nullptr && core_->draining()) {
    // Nobody new gets in: a call that waits for this connection ends as one that was not sent.
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
  hello.addresses = core_->addresses();
  hello.max_calls = core_->options().limits.calls;
  hello.max_bytes = core_->options().limits.in_flight;
  hello.max_header = core_->options().limits.header;
  hello.max_body = core_->options().limits.message;
  hello.max_attachments = core_->options().limits.attachments;
  hello.lanes = lanes_->most();
  hello.lane_key = lanes_->key();
  hello.process = core_->process();
  OutboundFrame frame = OutgoingMessage::hello(hello);
  frame.sent = [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->hello_left_ = true;
    if (self->lane_ && !self->ended_) self->become_lane();
  };
  connection->send(std::move(frame));
  handshake_timer_ =
      loop()->schedule(later(loop()->now(), core_->options().handshake_timeout), [self = shared_from_this()] {
        self->handshake_timer_ = 0;
        self->close(Error(ErrorKind::deadline_exceeded, "the peer did not finish the handshake"));
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
  const auto charge = std::move(frame.charge);  // until the call holds its own
  auto message = std::make_shared<IncomingMessage>(std::move(frame), core_->options().limits);
  AgentCounters::count(core_->counters().bytes_received, message->bytes());
  const Prefix& prefix = message->prefix();
  if (!ready_) {
    if (lane_) throw Error(ErrorKind::protocol_error, "bad frame: more than a lane");
    if (prefix.kind == FrameKind::goodbye) {
      const auto reason = message->goodbye();
      // Not close(): the peer may have closed the connection right behind this.
      return finish(reason ? Error(reason->kind(), std::string("the peer says: ") + reason->what())
                           : Error(ErrorKind::shut_down, "the peer is shutting down"));
    }
    if (prefix.kind == FrameKind::lane && route_ == nullptr) {
      lane_ = message->lane();
      return become_lane();
    }
    if (prefix.kind != FrameKind::hello) throw Error(ErrorKind::protocol_error, "bad frame: a Hello was due");
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
        if (reason->kind() == ErrorKind::peer_lost) core_->peer_world_failed(peer_, *reason);
        const ErrorKind kind = reason->kind() == agent_ended ? ErrorKind::peer_lost : reason->kind();
        return close(Error(kind, std::string("the peer says: ") + reason->what()));
      }
      peer_leaving_ = true;
      return core_->peer_leaving(peer_);
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
    connection_->send(OutgoingMessage::goodbye(reason));
    return finish(reason);
  }
  if (hello.name.empty()) throw Error(ErrorKind::protocol_error, "bad frame: a Hello without a name");
  if (Address::looks_like(hello.name))  // it would be taken for who listens there
    throw Error(ErrorKind::protocol_error, "bad frame: a Hello with an address for a name");
  const std::string identity = connection_->identity();
  if (identity.starts_with(certified) && identity.substr(certified.size()) != hello.name) {
    const Error reason(ErrorKind::permission_denied,
                       "the certificate is that of '" + identity.substr(certified.size()) +
                           "', and not of '" + hello.name + "', as this peer calls itself");
    connection_->send(OutgoingMessage::goodbye(reason));
    return finish(reason);
  }
  if (route_ != nullptr && !Address::looks_like(route_->name()) && hello.name != route_->name())
    return finish(Error(ErrorKind::unavailable,
                        "'" + hello.name + "' answers at the address of '" + route_->name() + "'"));
  if (const auto gone = core_->forgotten({hello.name, hello.incarnation})) return expel(*gone);
  peer_ = {hello.name, hello.incarnation};
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

// --- The session ---

void Link::join(std::shared_ptr<Session> session) {
  session_ = std::move(session);
  connection_->send(OutgoingMessage::plain(FrameKind::received,
                                           session_ != nullptr ? session_->accepted() : Session::over));
  if (session_ == nullptr || !session_->fresh()) return;
  counted_ = true;
  begin_session();
}

void Link::on_received(std::uint64_t count) {
  if (!protocol_.has(features::sessions))
    throw Error(ErrorKind::protocol_error, "bad frame: an acknowledgement without sessions");
  if (session_ == nullptr) return;  // the peer has been told
  if (count == Session::over)
    return core_->lose(peer_, Error(ErrorKind::lease_lost, peer_.name + " took this agent for gone"));
  if (!session_->acknowledged(count))
    throw Error(ErrorKind::protocol_error, "bad frame: it acknowledges more than was sent");
  if (!std::exchange(counted_, true)) begin_session();
}

void Link::begin_session() {
  if (ended_ || !counted_ || !in_session()) return;
  if (const auto charged = session_->use(shared_from_this())) {
    for (const std::uint64_t bytes : *charged) window_.use(bytes);
    transmit();
  }
  send_waiting();
}

void Link::send_waiting() {
  while (session_ != nullptr && !ended_) {
    const auto call = session_->next_call(*this);
    if (call == nullptr) return;
    if (!call->finished()) enter(call);
  }
}

void Link::transmit() {
  while (!ended_ && session_ != nullptr) {
    auto next = session_->next(*this);
    if (!next) return;
    transmit(std::move(*next));
  }
}

void Link::transmit(Session::Next&& next) {
  // Frames that the peer acknowledges over another link while they wait here are left out.
  if (next.number != announced_) connection_->send(OutgoingMessage::plain(FrameKind::resume, next.number));
  announced_ = next.number + 1;
  if (next.counts) count(sent_);
  AgentCounters::count(core_->counters().bytes_sent, next.frame.bytes());
  write(std::move(next.frame));
}

void Link::transmit_soon(const std::shared_ptr<Link>& link) {
  link->loop()->running_here() ? link->transmit() : link->loop()->post([link] { link->transmit(); });
}

// With the session's turn.
bool Link::arrive(const Prefix& prefix) {
  const auto arrival = session_->arrive(expected_++);
  if (arrival == Session::Arrival::gap) {
    connection_->send(OutgoingMessage::plain(FrameKind::received, Session::over));
    loop()->post([core = core_, peer = peer_] {
      core->lose(peer, Error(ErrorKind::peer_lost, "messages of " + peer.name + " are missing"));
    });
    return false;
  }
  ++unacknowledged_.frames;
  unacknowledged_.bytes += Prefix::size + prefix.message_bytes();
  const bool is_awaited = (prefix.flags & frame_flags::notify) != 0 && prefix.body_bytes > copied_bytes;
  is_awaited ? acknowledge() : acknowledge_soon();
  return arrival == Session::Arrival::accepted;
}

// Its sender has counted it again, for this link (AgentCore::Work).
void Link::count_repeated(InboundFrame&& frame) {
  if (frame.prefix.kind != FrameKind::request) return;
  const auto method =
      core_->find_method(IncomingMessage(std::move(frame), core_->options().limits).request().method);
  if (method == nullptr || !method->background) count(received_);
}

void Link::acknowledge_soon() {
  if (unacknowledged_.frames >= many_frames || unacknowledged_.bytes >= many_bytes) return acknowledge();
  if (unacknowledged_.bytes < large_bytes || acknowledge_timer_ != 0) return;
  acknowledge_timer_ = loop()->schedule(later(loop()->now(), acknowledge_after), [weak = weak_from_this()] {
    const auto link = weak.lock();
    if (link == nullptr) return;
    link->acknowledge_timer_ = 0;
    if (link->unacknowledged_.bytes >= large_bytes) link->acknowledge();
  });
}

void Link::acknowledge() {
  if (ended_ || session_ == nullptr || std::exchange(unacknowledged_, {}).frames == 0) return;
  connection_->send(OutgoingMessage::plain(FrameKind::received, session_->accepted()));
}

void Link::write(OutboundFrame&& frame) {
  if (unacknowledged_.frames >= few_frames || unacknowledged_.bytes >= few_bytes) acknowledge();
  spoken_ = true;
  connection_->send(std::move(frame));
}

void Link::give_back(const Session::Asked& asked) {
  const auto charged = asked.charged.lock();
  if (charged == nullptr) return;
  const auto back = [charged, bytes = asked.bytes] {
    charged->window_.give_back(1, bytes);
    charged->send_held();
  };
  charged->loop()->running_here() ? back() : charged->loop()->post(back);
}

// What came in is no peer's connection, but a lane of one that is there.
void Link::become_lane() {
  const auto whole = core_->link_with(lane_->key);
  if (whole == nullptr)
    return close(Error(ErrorKind::peer_lost, "a lane of no connection, or of one that has ended"));
  if (!hello_left_) return;
  const std::string identity = connection_->identity();
  auto stream = connection_->take_stream();
  if (stream == nullptr) return close(Error(ErrorKind::protocol_error, "bad frame: more than a lane"));
  whole->loop()->post(
      [whole, info = *lane_, identity, lane = Lanes::Stream{std::move(stream), loop()}]() mutable {
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
  if (std::exchange(handshaking_, false)) core_->handshake_over(shared_from_this());
}

void Link::send(const std::shared_ptr<PendingCall>& call) {
  if (call->finished()) return;
  // Asked here too: a call may have been on its way from its route's loop to this one when the world failed.
  if (core_->world_ended()) {
    call->fail(*core_->world_failure());
    return;
  }
  if (call->only() && *call->only() != peer_) {
    call->lose(ErrorKind::peer_lost,
               to_string(*call->only()) + " is gone: " + to_string(peer_) + " took its place");
    return;
  }
  if (call->resumable() && in_session()) return session_->submit(call);
  enter(call);
}

void Link::enter(const std::shared_ptr<PendingCall>& call) {
  if (ended_ || (peer_leaving_ && !call->upkeep())) {
    call->lose(peer_leaving_ ? ErrorKind::shut_down : ErrorKind::peer_lost,
               peer_leaving_ ? "the peer is shutting down" : "the connection has ended");
    return;
  }
  if (call->upkeep() || (held_.empty() && window_.has_room())) return dispatch(call);
  if (held_.size() >= prune_held_at_) {
    Fifo<std::shared_ptr<PendingCall>> live;
    while (!held_.empty())
      if (auto waiting = held_.pop(); !waiting->finished()) live.push(std::move(waiting));
    held_ = std::move(live);
    prune_held_at_ = std::max<std::size_t>(64, 2 * held_.size());
  }
  held_.push(call);
}

void Link::send_held() {
  while (!held_.empty() && window_.has_room() && !ended_)
    if (const auto call = held_.pop(); !call->finished()) dispatch(call);
}

std::shared_ptr<IncomingCall> Link::serving(std::uint64_t call_id) {
  const auto* found = incoming_.find(call_id);
  auto call = found != nullptr ? found->call.lock() : nullptr;
  return call == nullptr && session_ != nullptr ? session_->serving(call_id) : call;
}

// Another link may have carried a resumable call.
void Link::on_cancel(std::uint64_t call_id, bool resumable) {
  if (const auto call = serving(call_id)) return call->cancel();
  if (!resumable) return;
  const auto links = core_->links_to(peer_);
  // A link that has ended since the search is no longer among them, and its calls are in the session by then.
  if (const auto call = serving(call_id)) return call->cancel();
  for (const auto& other : links)
    if (other.get() != this)
      other->loop()->post([other, call_id] {
        if (const auto call = other->serving(call_id)) call->cancel();
      });
}

void Link::cancel_resumable() {
  for (const auto& call : incoming())
    if (call->is_resumable() && !call->is_notification()) call->cancel();
}

void Link::on_credit(const CreditInfo& credit) {
  window_.give_back(credit.calls, credit.bytes);
  send_held();
}

void Link::dispatch(const std::shared_ptr<PendingCall>& call) {
  const auto session = call->resumable() ? this->session() : nullptr;
  std::optional<PendingCall::Sealed> sealed;
  try {
    sealed = call->take_frame(call, shared_from_this(), session);
    if (!sealed) return;
    check_fits(sealed->frame);
  } catch (const Error& error) {
    call->fail(Error(error.kind(), call->method() + ": " + error.what(), Execution::not_sent));
    return;
  } catch (...) {
    call->finish(std::current_exception());
    return;
  }
  OutboundFrame* frame = &sealed->frame;
  std::uint64_t bytes = frame->head.size();  // what the other side counts too
  for (const Buffer& attachment : frame->attachments) bytes += padded(attachment.size());
  if (session != nullptr) {
    unacknowledged_ = {};  // the request states what this side has accepted
    // With larger attachments it ends once they are acknowledged: until then they may be sent again, and are
    // borrowed.
    const bool ends_when_sent = call->notify() && bytes <= frame->head.size() + copied_bytes;
    if (ends_when_sent)
      for (Buffer& attachment : frame->attachments) attachment = Buffer::copy(attachment.bytes());
    if (ends_when_sent)
      frame->sent = [session, id = call->id(), first = std::move(frame->sent)]() mutable {
        if (first) first();
        session->notified(id);
      };
    Session::Asked asked{.call = call, .bytes = bytes};
    if (!call->upkeep()) {
      window_.use(bytes);
      asked.charged = weak_from_this();
    }
    auto kept = session->request(std::move(*sealed), std::move(asked), *this, ends_when_sent);
    switch (kept.keep) {
      case Session::Keep::yes:
        return kept.next ? transmit(std::move(*kept.next)) : transmit();
      case Session::Keep::too_many:
        return close(Error(ErrorKind::resource_exhausted, "the peer does not acknowledge notifications"));
      case Session::Keep::over:
        if (!call->upkeep()) window_.give_back(1, bytes);
        return;
    }
  }
  if (!call->background()) count(sent_);
  AgentCounters::count(core_->counters().bytes_sent, bytes);
  const bool charged = !call->upkeep();
  if (charged) window_.use(bytes);
  pending_.insert(call->id(), {call, charged ? 1U : 0U, charged ? bytes : 0});
  if (call->notify()) {
    frame->sent = [weak = weak_from_this(), call, first = std::move(frame->sent)]() mutable {
      if (first) first();
      // Nothing will come back but, some time, its credit.
      if (const auto link = weak.lock()) link->pending_.take(call->id());
      call->finish(PendingCall::Reply{});
    };
  }
  write(std::move(*frame));
}

void Link::check_fits(const OutboundFrame& frame) const {
  check_outgoing(frame, core_->options().limits);
  check_outgoing(frame, peer_limits_, "the peer's");
}

bool Link::fits(const OutboundFrame& frame) const {
  try {
    check_fits(frame);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Link::cancel(std::uint64_t call_id) {
  Asked* asked = pending_.find(call_id);
  if (asked == nullptr || asked->call == nullptr || ended_) return;
  asked->call = nullptr;  // its answer still comes, and brings its credit
  connection_->send(OutgoingMessage::plain(FrameKind::cancel, call_id));
}

void Link::await_beat() {
  const auto interval = core_->options().heartbeat.interval;
  if (interval.count() <= 0 || ended_) return;
  beat_due_ = later(loop()->now(), interval);
  heartbeat_ = loop()->schedule(beat_due_, [weak = weak_from_this()] {
    if (const auto link = weak.lock()) link->beat();
  });
}

// Silence is counted in beats and not by the clock: a time in which this process itself stood still counts as
// one. Between two beats of this side there may be none of the other's, so one alone is no silence.
void Link::beat() {
  heartbeat_ = 0;
  if (ended_) return;
  const Heartbeat& heartbeat = core_->options().heartbeat;
  if (const auto now = loop()->now(); now - beat_due_ > heartbeat.interval)
    core_->beat_was_late(now, now - beat_due_);
  const std::uint64_t heard = connection_->received_bytes();
  silent_ = heard == std::exchange(heard_, heard) ? silent_ + 1 : 0;
  if (silent_ > 1 && silent_ * heartbeat.interval >= heartbeat.timeout) {
    AgentCounters::count(core_->counters().peers_silent);
    const auto seconds = std::chrono::duration<double>(silent_ * heartbeat.interval).count();
    end_is_proven_ = true;  // an absence lasts no longer than this silence has
    return close(Error(ErrorKind::peer_lost,
                       "nothing was heard from " + peer_.name + " for " + std::to_string(seconds) + " s"));
  }
  if (unacknowledged_.frames != 0) acknowledge();
  if (!std::exchange(spoken_, false)) send_beat(FrameKind::ping, 0);
  await_beat();
}

// Ahead of what is queued, once the Hello has left, which comes first. One that still waits to leave says all
// that another would: so a peer that asks on and on and reads nothing makes nothing grow.
void Link::send_beat(FrameKind kind, std::uint64_t id) {
  bool& queued = kind == FrameKind::ping ? ping_queued_ : pong_queued_;
  if (ended_ || std::exchange(queued, true)) return;
  OutboundFrame frame = OutgoingMessage::plain(kind, id);
  frame.sent = [weak = weak_from_this(), kind] {
    const auto link = weak.lock();
    if (link != nullptr) (kind == FrameKind::ping ? link->ping_queued_ : link->pong_queued_) = false;
  };
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

void Link::fail_pending(const Error& error) {
  for (auto& [id, asked] : pending_.take_all()) {
    window_.give_back(asked.calls, asked.bytes);
    if (asked.call != nullptr) asked.call->fail(error);
  }
  while (!held_.empty()) held_.pop()->fail(error);
}

void Link::on_reply(std::shared_ptr<IncomingMessage> message) {
  if (message->has_sections())
    core_->replied(*message, peer_);  // also where nobody waits: it may hand something over
  const std::uint64_t id = message->prefix().call_id;
  const bool resumable = (message->prefix().flags & frame_flags::resumable) != 0;
  if (!resumable && finish_call(id, std::move(message))) return;
  if (session_ != nullptr)
    if (const auto asked = session_->answered(id)) {
      give_back(*asked);
      if (asked->call != nullptr) asked->call->finish(std::move(message));
      return;
    }
  if (!resumable || finish_call(id, std::move(message))) return;
  // An answer takes the link that the peer's session uses. The call may have taken another one.
  for (const auto& other : core_->links_to(peer_))
    if (other.get() != this)
      other->loop()->post([other, id, message]() mutable { other->finish_call(id, std::move(message)); });
}

bool Link::finish_call(std::uint64_t call_id, std::shared_ptr<IncomingMessage>&& answer) {
  const auto asked = pending_.take(call_id);
  if (!asked) return false;
  window_.give_back(asked->calls, asked->bytes);
  if (asked->call != nullptr) asked->call->finish(std::move(answer));
  if (!held_.empty()) send_held();
  return true;
}

// Nothing of it is known but its prefix.
void Link::on_skipped(const Prefix& request) {
  if (ended_ || !ready_ || core_->ended()) return;
  if (const auto session = session_of(request)) {
    const auto turn = session->turn();
    if (!arrive(request)) return;
  }
  if (request.kind != FrameKind::request) return;
  AgentCounters::count(core_->counters().calls_shed);
  refuse(request, MethodEntry{}, ErrorKind::resource_exhausted,
         "no room for a request of " + std::to_string(request.message_bytes()) +
             " bytes: this agent holds as many as its limit allows (Limits::in_flight_total)");
}

void Link::on_request(std::shared_ptr<IncomingMessage> message, bool admitted) {
  // An agent that ends without a goodbye is lost to its peers: none of them hears an answer that one does
  // not.
  if (core_->ended()) return;
  const Prefix prefix = message->prefix();
  const RequestInfo info = message->request();
  if (const auto session = session_of(prefix); session && !session->acknowledged_by_request(info.accepted))
    throw Error(ErrorKind::protocol_error, "bad frame: it acknowledges more than was sent");
  auto method = core_->find_method(info.method);
  if (method == nullptr) method = no_method(info.method);
  AgentCounters::count(core_->counters().calls_served);
  if (!method->background) count(received_);
  if (const auto& permissions = core_->options().permissions;
      permissions && !permissions->allows(caller_->identity, method->name)) {
    AgentCounters::count(core_->counters().calls_denied);
    const std::string who = caller_->identity.empty() ? "a peer that has proven nothing" : caller_->identity;
    core_->log_some("calls denied", loop(), peer_.name + " (" + who + ") may not call " + method->name,
                    {{log_fields::peer, peer_.name},
                     {log_fields::identity, caller_->identity},
                     {log_fields::method, method->name},
                     {log_fields::call, std::to_string(prefix.call_id)},
                     {log_fields::kind, to_string(ErrorKind::permission_denied)}});
    return refuse(prefix, *method, ErrorKind::permission_denied, who + " may not call this");
  }
  ActiveCall active(
      core_, method->background);  // before it is asked: drain() says first that it drains, then counts
  if (core_->draining() && !method->upkeep)
    return refuse(prefix, *method, ErrorKind::shut_down, "this agent is shutting down");
  if (incoming_.contains(prefix.call_id))
    throw Error(ErrorKind::protocol_error, "bad frame: a call id used twice");
  const Limits& limits = core_->options().limits;
  // Of each stream that is open two are under way, and some that came late.
  const bool room = method->upkeep
                        ? unanswered_.upkeep / 4 < core_->options().streams.max_per_peer
                        : unanswered_.calls / 2 < limits.calls && unanswered_.bytes / 2 < limits.in_flight;
  if (!room || !core_->hold(message->bytes(), method->upkeep, admitted)) {
    AgentCounters::count(core_->counters().calls_shed);
    return refuse(prefix, *method, ErrorKind::resource_exhausted,
                  "too many requests in flight, or too many bytes of them");
  }
  std::optional<Clock::time_point> deadline;
  if (info.timeout_ns != 0)
    deadline = loop()->now() +
               std::chrono::nanoseconds(std::min<std::uint64_t>(info.timeout_ns, std::uint64_t{1} << 60));
  Served served{.bytes = message->bytes(),
                .expected_next = session_of(prefix) != nullptr ? expected_ : 0,
                .upkeep = method->upkeep};
  if (method->upkeep) {
    ++unanswered_.upkeep;
  } else {
    ++unanswered_.calls;
    unanswered_.bytes += served.bytes;
  }
  auto call = std::make_shared<IncomingCall>(core_, shared_from_this(), std::move(method), message, caller_,
                                             deadline, info.attempt, std::move(active));
  served.call = call;
  incoming_.insert(prefix.call_id, std::move(served));
  if (message->has_sections()) {
    core_->prepare(std::move(call));
  } else {
    call->run();
  }
}

void Link::refuse(const Prefix& request, const MethodEntry& method, ErrorKind kind,
                  const std::string& message) {
  if ((request.flags & frame_flags::notify) != 0) {
    core_->log_some("notifications dropped", loop(),
                    "a notification from " + peer_.name + " was dropped: " + method.name + ": " + message,
                    {{log_fields::peer, peer_.name},
                     {log_fields::method, method.name},
                     {log_fields::call, std::to_string(request.call_id)},
                     {log_fields::kind, to_string(kind)}});
    if (method.upkeep) return;
    return give_credit(Prefix::size + request.header_words * std::uint64_t{8} + request.body_bytes);
  }
  reply(request, {kind, message, core_->id().name, method.name, {}, true}, ActiveCall(core_));
}

void Link::reply(const Prefix& request, const FailureInfo& failure, ActiveCall active) {
  if ((request.flags & frame_flags::notify) != 0) {
    core_->log_some(
        "notifications failed", loop(),
        "a notification from " + peer_.name + " failed: " + failure.method + ": " + failure.message,
        {{log_fields::peer, peer_.name},
         {log_fields::method, failure.method},
         {log_fields::call, std::to_string(request.call_id)},
         {log_fields::kind, to_string(failure.kind)}});
    return;
  }
  OutboundFrame frame = OutgoingMessage::failure(request.call_id, failure);
  if (failure.payload != nullptr && !fits(frame)) {  // the error is worth more than its payload
    FailureInfo bare = failure;
    bare.payload = nullptr;
    frame = OutgoingMessage::failure(request.call_id, bare);
  }
  if ((request.flags & frame_flags::resumable) != 0 && in_session())
    add_flag(frame.head.bytes(), frame_flags::resumable);
  send_reply(request.call_id, std::move(frame), std::move(active));
}

void Link::send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) {
  frame.sent = [active = std::move(active)] {};
  const auto send = [call_id](Link& link, OutboundFrame& reply) {
    Served* call = link.incoming_.find(call_id);
    if (call != nullptr) link.count_no_more(*call);
    if (has_flag(reply.head.bytes(), frame_flags::resumable) && link.session_ != nullptr) {
      // It acknowledges its request, and what came before.
      if (call != nullptr && call->expected_next == link.expected_) link.unacknowledged_ = {};
      auto kept = link.session_->answer(call_id, std::move(reply), link.ended_ ? nullptr : &link);
      if (kept.next) link.transmit(std::move(*kept.next));
      if (kept.keep == Session::Keep::too_many)
        link.close(Error(ErrorKind::resource_exhausted, "the peer does not take its answers"));
      return;
    }
    link.answer(std::move(reply), call != nullptr && call->upkeep);
  };
  if (loop()->running_here()) return send(*this, frame);
  loop()->post([self = shared_from_this(), send, frame = std::move(frame)]() mutable { send(*self, frame); });
}

void Link::count_no_more(Served& call) {
  if (!std::exchange(call.counted, false)) return;
  if (call.upkeep) {
    --unanswered_.upkeep;
  } else {
    --unanswered_.calls;
    unanswered_.bytes -= call.bytes;
  }
}

// A peer that asks on and on and takes no answers is cut off: they would pile up here. Those to upkeep are
// bounded by what they belong to.
void Link::answer(OutboundFrame&& frame, bool upkeep) {
  if (ended_) return;
  const std::uint64_t bytes = frame.bytes();
  const std::uint64_t unsent = connection_->unsent_bytes();
  if (!upkeep && unsent > few_unsent_bytes && unsent + bytes > core_->options().limits.in_flight)
    return close(Error(ErrorKind::resource_exhausted, "the peer does not take its answers"));
  AgentCounters::count(core_->counters().bytes_sent, bytes);
  write(std::move(frame));
}

void Link::give_credit(std::uint64_t bytes) {
  if (const auto credit = returns_.ended(bytes); credit && !ended_)
    connection_->send(OutgoingMessage::credit(*credit));
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

// Kept until all have been seen: one that ends here leaves `incoming_`.
std::vector<std::shared_ptr<IncomingCall>> Link::incoming() const {
  std::map<std::uint64_t, std::shared_ptr<IncomingCall>> by_id;
  incoming_.for_each([&](std::uint64_t id, const Served& served) {
    if (auto call = served.call.lock()) by_id.emplace(id, std::move(call));
  });
  return values_of(std::move(by_id));
}

void Link::call_ended(const Gone& gone) {
  core_->let_go(gone.bytes, gone.upkeep);
  if (gone.resumable && ended_ && session_ != nullptr) session_->served(gone.id);
  const auto forget = [gone](Link& link) {
    if (auto served = link.incoming_.take(gone.id)) link.count_no_more(*served);
    if (gone.deadline != 0) link.loop()->cancel(gone.deadline);
    if (gone.notification && !gone.upkeep) link.give_credit(Prefix::size + gone.bytes);
  };
  if (loop()->running_here()) return forget(*this);
  loop()->post([self = shared_from_this(), forget] { forget(*self); });
}

void Link::on_closed(const Error& reason) {
  if (ended_.exchange(true)) return;
  if (handshake_timer_ != 0) loop()->cancel(std::exchange(handshake_timer_, 0));
  if (heartbeat_ != 0) loop()->cancel(std::exchange(heartbeat_, 0));
  if (acknowledge_timer_ != 0) loop()->cancel(std::exchange(acknowledge_timer_, 0));
  end_handshake();
  if (route_ == nullptr && !ready_ &&
      (reason.kind() == ErrorKind::permission_denied || reason.kind() == ErrorKind::deadline_exceeded))
    AgentCounters::count(core_->counters().connections_refused);
  const bool usual = reason.kind() == ErrorKind::peer_lost || reason.kind() == ErrorKind::shut_down;
  const std::string way = connection_->describe(), text = way + ": closed: " + reason.what();
  const LogField on{log_fields::connection, way}, peer{log_fields::peer, peer_.name},
      kind_of_it{log_fields::kind, to_string(reason.kind())};
  if (!usual && route_ == nullptr) {
    core_->log_some(ready_ ? "connections closed" : "connections refused", loop(), text,
                    {on, peer, kind_of_it});
  } else {
    core_->log(usual ? LogLevel::debug : LogLevel::warning, text, {on, peer, kind_of_it});
  }
  const ErrorKind kind = peer_leaving_ || core_->draining()              ? ErrorKind::shut_down
                         : reason.kind() == ErrorKind::shut_down         ? ErrorKind::shut_down
                         : reason.kind() == ErrorKind::permission_denied ? ErrorKind::permission_denied
                         : reason.kind() == ErrorKind::lease_lost        ? ErrorKind::lease_lost
                         : ready_                                        ? ErrorKind::peer_lost
                         : reason.kind() == ErrorKind::peer_lost         ? ErrorKind::unavailable
                                                                         : reason.kind();
  // The connection was lost, and nothing says that the peer was: it may return.
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
    // Before this link is reported as ended: a search for a call finds it here or in the session.
    for (const auto& call : incoming())
      if (call->is_resumable()) session_->serve(call->id(), call);
    session_->leave(*this, std::move(resumable));
  }
  core_->link_ended(shared_from_this(), route_, Error(kind, reason.what()), may_return);
  const auto cause = core_->cause_of_ends();
  const auto lose = [&](PendingCall& call) { cause ? call.fail(*cause) : call.lose(kind, reason.what()); };
  for (auto& [id, asked] : pending_.take_all())
    if (asked.call != nullptr) lose(*asked.call);
  while (!held_.empty()) lose(*held_.pop());
  // Who sent a notification may leave behind it: it is served all the same.
  for (auto& [id, served] : incoming_.take_all())
    if (auto call = served.call.lock();
        call != nullptr && !call->is_notification() && !(call->is_resumable() && in_session()))
      call->cancel();
  // It holds this link, until it has reported its own end: on the program's io_context that may never come.
  connection_ = nullptr;
  lanes_->end();
}

}  // namespace weft::rpc
