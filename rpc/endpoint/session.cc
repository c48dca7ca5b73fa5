// The states of a session:
//
//   unconnected -> moving       a connection is chosen, or is to be used, on another loop
//   unconnected -> joining      the chooser has stated the connection, and waits for the answer
//   unconnected -> connected    the peer's choice is answered; or the session is not kept
//   moving      -> joining, connected   the session has arrived on the loop of the connection
//   joining     -> connected    the answer has arrived
//   joining     -> moving, joining      the chooser prefers another connection, the other agent asks for one,
//                               or the chosen one has ended
//   connected   -> moving, joining, connected   the same; or the chooser has chosen another connection
//   connected   -> unconnected  the connection of the other agent has ended, and it asks over another
//   unconnected, joining, connected -> absent   the connection has ended, none is left that can be chosen,
//                               and the peer may return
//   absent      -> unconnected  the peer has connected again
//   any         -> over         the peer is gone or has ended the session, a limit, or this agent ends
//
// Calls are held in unconnected, moving, joining and absent (in which those with fail_fast fail), are sent in
// connected as credit permits, and fail in over.
#include <weft/rpc/endpoint/session.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

#include <algorithm>
#include <limits>

namespace weft::rpc {
namespace {

// A change of the bytes that a session keeps is added to those of all sessions from this size on.
constexpr std::uint64_t reported_at = 64 << 10;

// Refusals, and returns of credit, that may be kept while the peer does not acknowledge its replies. Its
// credit does not bound them.
constexpr std::size_t max_refusals = 4096;

// The open connections to one peer. An honest peer has more than two only if many of its routes lead here.
constexpr std::size_t max_links = 16;

// A limit that the peer has stated; 0: unlimited.
template <class Number>
Number stated(Number limit) {
  return limit != 0 ? limit : std::numeric_limits<Number>::max();
}

// Adds one request to the counter, which is written on the session's loop only.
void count(std::atomic<std::uint64_t>& requests) {
  requests.store(requests.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace

Session::Session(std::shared_ptr<AgentCore> core, AgentId peer, std::shared_ptr<Loop> loop,
                 const HelloInfo& hello, bool is_kept, std::uint64_t number)
    : core_(std::move(core)),
      peer_(std::move(peer)),
      is_kept_(is_kept),
      is_chooser_(core_->id() < peer_),
      own_number_(number),
      max_replies_(std::min(stated(hello.max_replies), replies_in_flight(core_->options().limits))),
      jobs_(std::move(loop)),
      number_(is_chooser_ ? number : 0),
      calls_(core_->sessions().id_seed(), stated(hello.max_calls), stated(hello.max_bytes)),
      served_(*core_) {
  peer_limits_.header = stated(hello.max_header);
  peer_limits_.message = stated(hello.max_body);
  peer_limits_.attachments = stated(hello.max_attachments);
}

std::uint64_t Session::replies_in_flight(const Limits& limits) {
  return std::max(limits.in_flight, 2 * Unacknowledged::many_bytes);
}

void Session::run_job(Job&& job) {
  if (auto* call = std::get_if<std::shared_ptr<PendingCall>>(&job)) return enter(std::move(*call));
  if (auto* reply = std::get_if<Reply>(&job)) return answer(std::move(*reply));
  std::get<Callback>(job)();
}

// --- Connections ---

void Session::add(std::shared_ptr<Link> link) {
  run([self = shared_from_this(), link = std::move(link)] {
    if (self->state_ == State::over) return link->close_soon(*self->why_over_);
    self->links_.push_back(link);
    if (self->links_.size() > max_links) {  // the oldest closes, or the next one if the oldest is in use
      const auto surplus = self->links_.begin() + (self->links_.front() == self->link_ ? 1 : 0);
      (*surplus)->close_soon(Error(ErrorKind::peer_lost, self->peer_.name + " has too many connections"));
      self->links_.erase(surplus);
    }
    if (self->state_ == State::absent) self->state_ = State::unconnected;
    if (!self->is_kept_) return self->choose(link);
    if (!self->is_chooser_) {
      if (self->state_ == State::unconnected) self->ask();
      return self->close_surplus();
    }
    // Both agents may have dialled: the connection that the chooser has dialled stays.
    if (self->link_ == nullptr || (link->is_dialled() && !self->link_->is_dialled()))
      return self->choose(link);
    self->close_surplus();
  });
}

void Session::choose(const std::shared_ptr<Link>& link) { take(link, epoch_ + 1, 0); }

// Leaves the connection in use for this one. The session may belong to another loop when this function
// returns.
void Session::take(const std::shared_ptr<Link>& link, std::uint64_t epoch, std::uint64_t peer_accepted) {
  leave_link();
  epoch_ = epoch;
  peer_accepted_ = peer_accepted;
  link_ = link;
  if (is_at(*link->loop())) return begin_use();
  state_ = State::moving;
  jobs_.move_to(shared_from_this(), link->loop(),
                Callback([self = shared_from_this()] { self->begin_use(); }));
}

// The chooser states its choice, and waits for the answer; the other agent answers.
void Session::begin_use() {
  if (state_ == State::over) return;  // the jobs of a session that has ended run, too
  if (is_kept_) link_->send(OutgoingMessage::resume({number_, epoch_, accepted_, is_chooser_ && is_new_}));
  if (is_kept_ && is_chooser_) {
    state_ = State::joining;
  } else {
    connected();
  }
}

// The peer may believe that it is connected.
void Session::ask() {
  if (number_ == 0 && !core_->sessions().is_gone(peer_)) return;
  if (const auto link = unused())
    link->send_soon(OutgoingMessage::resume({number_, epoch_, accepted_, false}));
}

void Session::on_resume(std::shared_ptr<Link> link, const ResumeInfo& info) {
  run([self = shared_from_this(), link = std::move(link), info] {
    if (self->state_ != State::over && self->is_kept_) try {
        self->is_chooser_ ? self->on_answer(link, info) : self->on_choice(link, info);
      } catch (...) {
        link->close_soon(error_of(std::current_exception()));
      }
    link->decided();
  });
}

// An answer to the latest choice, or a question for a connection. A question that is older than an answered
// choice has an older epoch. While the choice is unanswered, an older question counts: the connection that
// was chosen may be half open. An earlier session's questions do not count.
void Session::on_answer(const std::shared_ptr<Link>& link, const ResumeInfo& info) {
  const bool is_question = link != link_ && (state_ == State::joining || state_ == State::connected) &&
                           is_mine(link) && !link->was_used();
  // The peer has ended its session, and this agent believes that it has a connection.
  if (is_question && info.session == 0 && info.epoch == 0) return choose(link);
  const bool is_current = state_ == State::joining ? info.epoch <= epoch_ : info.epoch == epoch_;
  if (is_question && info.session == number_ && is_current) return choose(link);
  if (link != link_ || state_ != State::joining || info.epoch != epoch_) return;
  if (info.session == 0)
    return renew(link, Error(ErrorKind::lease_lost, peer_.name + " declared this agent gone"), {});
  if (info.session != number_) return;
  check_accepted(info.accepted);
  peer_accepted_ = info.accepted;
  connected();
}

void Session::on_choice(const std::shared_ptr<Link>& link, const ResumeInfo& info) {
  if (!is_mine(link)) return;
  if (info.session == 0) throw Error(ErrorKind::protocol_error, "bad frame: a session without a number");
  if (info.session != number_) {
    // The peer continues a session that this agent has ended and forgotten.
    if (!info.is_new) return link->send_soon(OutgoingMessage::resume({0, info.epoch, 0, false}));
    if (number_ != 0)
      return renew(link, Error(ErrorKind::lease_lost, peer_.name + " declared this agent gone"), info);
    number_ = info.session;
  } else if (info.epoch <= epoch_) {
    return;  // an earlier choice, which arrives late over another connection
  }
  // Each choice sends the kept frames again.
  if (link->was_used())
    throw Error(ErrorKind::protocol_error, "bad frame: a connection was chosen for the second time");
  check_accepted(info.accepted);
  take(link, info.epoch, info.accepted);
}

void Session::check_accepted(std::uint64_t count) const {
  if (count < frames_.first() || count > frames_.end())
    throw Error(ErrorKind::protocol_error, "bad frame: it acknowledges " + std::to_string(count) +
                                               " frames, expected " + std::to_string(frames_.first()) +
                                               " to " + std::to_string(frames_.end()));
}

// A connection that can be chosen: each is chosen once. null: none.
std::shared_ptr<Link> Session::unused() const {
  const auto found =
      std::find_if(links_.rbegin(), links_.rend(), [](const auto& link) { return !link->was_used(); });
  return found == links_.rend() ? nullptr : *found;
}

bool Session::is_mine(const std::shared_ptr<Link>& link) const {
  return std::find(links_.begin(), links_.end(), link) != links_.end();
}

// The link in use is not used any more: what still arrives over it is dropped, and arrives again over the
// next one.
void Session::leave_link() {
  if (link_ == nullptr) return;
  if (state_ == State::connected || state_ == State::joining) link_->retire();
  if (acknowledge_timer_ != 0) link_->loop()->cancel(std::exchange(acknowledge_timer_, 0));
  link_ = nullptr;
  if (state_ != State::over) state_ = State::unconnected;
}

void Session::connected() {
  if (!core_->sessions().connected(*this)) return;  // the session is about to end
  if (peer_ != core_->id())
    for (const auto& hook : core_->hooks().all()) hook->connection_made(peer_);
  is_new_ = false;
  // Requests whose calls have ended, and that the peer has never received, get no answer.
  for (const std::uint64_t id : frames_.withdrawn_from(peer_accepted_))
    if (const auto sent = calls_.take(id); sent && sent->counts) requests_sent_.fetch_sub(1);
  // The end of a notification may run code that makes calls; they are held until the frames before them are
  // sent.
  const auto chosen = link_;
  acknowledged(peer_accepted_);
  if (state_ == State::over || link_ != chosen) return;
  state_ = State::connected;
  unacknowledged_.clear();
  link_->use();
  frames_.rewind();
  transmit();
  for (const auto& call : calls_.held())
    if (call->connect_within()) PendingCall::watch_time(call, loop(), false);
  dispatch_held();
  close_surplus();
}

// One connection is enough. Its dialler closes it, so that no connection is closed while its dialler relies
// on it; the chooser also closes a connection that it has left.
void Session::close_surplus() {
  if (state_ != State::connected) return;
  std::vector<std::shared_ptr<Link>> surplus;
  std::erase_if(links_, [&](const auto& link) {
    const bool is_surplus = link != link_ && (link->is_dialled() || (is_chooser_ && link->was_used()));
    if (is_surplus) surplus.push_back(link);
    return is_surplus;
  });
  const Error reason(ErrorKind::peer_lost, "another connection to " + peer_.name + " is in use");
  for (const auto& link : surplus) link->close_soon(reason);
}

void Session::lost(std::shared_ptr<Link> link, const Error& reason, bool may_return) {
  run([self = shared_from_this(), link = std::move(link), reason, may_return] {
    std::erase(self->links_, link);
    if (self->state_ == State::over) return;
    if (link == self->link_) {
      self->leave_link();
    } else if (self->link_ != nullptr || self->state_ == State::absent) {
      return;
    }
    self->look_for_connection(reason, may_return);  // a question may also be lost with the link
  });
}

void Session::look_for_connection(const Error& reason, bool may_return) {
  const auto next = unused();
  if (next == nullptr && may_return && is_kept_) state_ = State::absent;
  fail_fast_calls(reason);
  if (state_ == State::over || link_ != nullptr) return;
  if (next != nullptr) return is_chooser_ ? choose(next) : ask();
  if (state_ == State::absent && core_->session_absent(*this, loop(), reason)) return;
  core_->session_lost(shared_from_this(), reason);
}

void Session::fail_fast_calls(const Error& reason) {
  for (const auto& call : calls_.in_flight()) {
    if (!call->fail_fast()) continue;
    if (auto* sent = calls_.find(call->id()); sent != nullptr && sent->call != nullptr)
      withdraw(*sent)->lose(core_->job_error_of_ends(), ErrorKind::peer_lost, reason.what());
  }
  for (const auto& call : frames_.notifications())
    if (call->fail_fast()) call->lose(core_->job_error_of_ends(), ErrorKind::peer_lost, reason.what());
  for (const auto& call : calls_.held())
    if (call->fail_fast()) call->lose(core_->job_error_of_ends(), ErrorKind::unavailable, reason.what());
  note_kept();
}

// The session that follows has the link, which tells it about the choice again.
void Session::renew(const std::shared_ptr<Link>& link, const Error& reason, const ResumeInfo& info) {
  leave_link();
  std::erase(links_, link);
  core_->session_lost(shared_from_this(), reason);
  run([link, info] { link->join_new_session(info); });  // after the layers have been told
}

// --- Calls of this side ---

void Session::submit(std::shared_ptr<PendingCall> call) {
  if (jobs_.is_first_here()) return enter(std::move(call));
  jobs_.push(shared_from_this(), std::move(call));
}

void Session::enter(std::shared_ptr<PendingCall> call) {
  if (call->finished()) return;
  was_used_.store(true, std::memory_order_relaxed);
  if (core_->ended()) return call->lose(ErrorKind::shut_down, "this agent has shut down");
  if (core_->job_ended()) return void(call->fail(*core_->job_error()));
  if (state_ == State::over) return decline(call);
  if (call->only() != nullptr && *call->only() != peer_)
    return call->lose(ErrorKind::peer_lost,
                      to_string(*call->only()) + " is gone: " + to_string(peer_) + " has replaced it");
  if (is_leaving_ && !call->control()) return decline(call);
  if (state_ == State::absent && call->fail_fast())
    return call->lose(ErrorKind::unavailable, "the connection is lost");
  const bool is_open = state_ == State::connected;
  if (call->deadline() || (!is_open && call->connect_within()))
    PendingCall::watch_time(call, loop(), !is_open);
  if (is_open && calls_.may_send(*call)) return dispatch(call);
  calls_.hold(std::move(call));
}

// The peer is gone, or accepts no new calls. A call that was not sent, and that waits until its peer is
// ready, waits for the next incarnation.
void Session::decline(const std::shared_ptr<PendingCall>& call) {
  if (call->wait_for_ready() && call->only() == nullptr && !core_->ended() && !core_->job_ended()) {
    call->clear_timer();
    return call->route()->submit(call);
  }
  if (why_over_) return call->lose(cause_, why_over_->kind(), why_over_->what());
  call->lose(ErrorKind::shut_down, "the peer is shutting down");
}

void Session::dispatch_held() {
  while (state_ == State::connected) {
    const auto call = calls_.next();
    if (call == nullptr) return;
    is_leaving_ && !call->control() ? decline(call) : dispatch(call);
  }
}

void Session::dispatch(const std::shared_ptr<PendingCall>& call) {
  std::optional<PendingCall::SerializedCall> sealed;
  try {
    sealed =
        call->take_frame(call, *loop(), {.sent_by = weak_from_this(), .peer = peer_, .accepted = accepted_});
    if (!sealed) return;
    check_fits(sealed->frame);
  } catch (const Error& error) {
    return void(call->fail(Error(error.kind(), call->title() + ": " + error.what(), Execution::not_sent)));
  } catch (...) {
    return void(call->finish(std::current_exception()));
  }
  OutboundFrame& frame = sealed->frame;
  core_->counters().bytes_sent.add(frame.bytes());
  std::uint64_t attached = 0;  // counted as the other side counts
  for (const Buffer& attachment : frame.attachments) attached += padded(attachment.size());
  const std::uint64_t bytes = frame.head.size() + attached;
  const bool ends_when_sent =
      call->notify() && !call->acknowledged() && attached <= Unacknowledged::copied_bytes;
  if (ends_when_sent)
    for (Buffer& attachment : frame.attachments) attachment = Buffer::copy(attachment.bytes());
  if (!call->control()) calls_.use_credit(bytes);
  const bool counts = !call->background();
  if (counts) count(requests_sent_);
  unacknowledged_.clear();  // the request acknowledges what was accepted
  // Without note_kept(): the bytes matter once the connection is lost, and fail_fast_calls() notes them then.
  const std::uint64_t number = frames_.keep({.frame = std::move(frame),
                                             .kind = FrameKind::request,
                                             .call_id = call->id(),
                                             .check = std::move(sealed->check),
                                             .notification = call->notify() ? call : nullptr,
                                             .ends_when_sent = ends_when_sent});
  if (!call->notify()) calls_.sent(call->id(), {call, number, bytes, !call->control(), counts});
  transmit();
}

void Session::cancel(std::uint64_t call_id) {
  run([self = shared_from_this(), call_id] {
    auto* sent = self->calls_.find(call_id);
    if (sent == nullptr || sent->call == nullptr || self->state_ == State::over) return;
    const auto call = self->withdraw(*sent);  // its end may run code, so it comes last
    self->transmit();
  });
}

void Session::fail_calls(const Error& error) {
  run([self = shared_from_this(), error] {
    for (const auto& call : self->calls_.in_flight()) {
      if (auto* sent = self->calls_.find(call->id())) sent->call = nullptr;
      call->fail(error);
    }
    for (const auto& call : self->frames_.notifications()) call->fail(error);
    for (const auto& call : self->calls_.take_held()) call->fail(error);
  });
}

void Session::on_credit(const CreditInfo& credit) {
  calls_.give_back(credit.calls, credit.bytes);
  dispatch_held();
}

void Session::on_reply(std::shared_ptr<IncomingMessage> message) {
  // Even if the call has ended, because the reply may pass references to this agent.
  if (message->has_sections())
    for (const auto& hook : core_->hooks().all()) hook->replied(*message, peer_);
  auto sent = calls_.take(message->prefix().call_id);
  if (!sent) return;
  acknowledged(sent->number + 1);
  if (sent->call != nullptr) sent->call->finish(std::move(message));
  dispatch_held();
}

// --- Frames ---

std::uint64_t Session::keep(SentFrames::UnacknowledgedFrame&& frame) {
  const std::uint64_t number = frames_.keep(std::move(frame));
  note_kept();
  return number;
}

// The call has ended at this side: its request is withdrawn, and the callee is told. The answer will still
// arrive and return the credit.
std::shared_ptr<PendingCall> Session::withdraw(OutgoingCalls::SentCall& sent) {
  auto call = std::exchange(sent.call, nullptr);
  frames_.withdraw(sent.number);
  keep({.frame = OutgoingMessage::plain(FrameKind::cancel, call->id()),
        .kind = FrameKind::cancel,
        .call_id = call->id()});
  return call;
}

void Session::note_kept() {
  const std::uint64_t bytes = frames_.bytes();
  kept_bytes_.store(bytes, std::memory_order_relaxed);
  // An atomic addition for each frame would be expensive, so the total of all sessions is not exact.
  const std::uint64_t difference = bytes > reported_ ? bytes - reported_ : reported_ - bytes;
  if (difference < reported_at && (bytes != 0 || state_ != State::over)) return;
  core_->sessions().kept_total() += bytes - std::exchange(reported_, bytes);
}

void Session::transmit() {
  while (state_ == State::connected && frames_.has_unsent()) {
    if (unacknowledged_.is_due_with_next_frame()) acknowledge();
    OutboundFrame frame = frames_.next();
    // A peer without sessions acknowledges nothing: what was sent has arrived, or the session ends.
    if (!is_kept_)
      frame.sent = [weak = weak_from_this(), count = frames_.unsent(),
                    first = std::move(frame.sent)]() mutable {
        if (first) first();
        if (const auto self = weak.lock(); self != nullptr && self->state_ == State::connected)
          self->acknowledged(count);
      };
    link_->send(std::move(frame));
  }
}

void Session::acknowledged(std::uint64_t count) {
  if (count > frames_.end())
    throw Error(ErrorKind::protocol_error, "bad frame: it acknowledges " + std::to_string(count) +
                                               " frames, more than the " + std::to_string(frames_.end()) +
                                               " that were sent");
  if (count <= frames_.first()) return;
  frames_.acknowledge(count);
  note_kept();
  serve_waiting();
}

void Session::on_received(std::uint64_t count) {
  if (!is_kept_)
    throw Error(ErrorKind::protocol_error, "bad frame: an acknowledgement on a connection without sessions");
  acknowledged(count);
}

void Session::arrived(const Prefix& prefix) {
  ++accepted_;
  was_used_.store(true, std::memory_order_relaxed);
  if (!is_kept_) return;
  switch (unacknowledged_.accept(prefix)) {
    case Unacknowledged::Due::later:
      return;
    case Unacknowledged::Due::now:
      return acknowledge();
    case Unacknowledged::Due::this_turn:
      return loop()->post([self = shared_from_this()] {
        self->run([self] {
          self->unacknowledged_.turn_ended();
          self->acknowledge();
        });
      });
    case Unacknowledged::Due::after_delay:
      if (acknowledge_timer_ != 0) return;
      acknowledge_timer_ =
          loop()->schedule(later(loop()->now(), Unacknowledged::delay), while_alive(this, [](Session& self) {
                             self.acknowledge_timer_ = 0;
                             if (self.unacknowledged_.is_large()) self.acknowledge();
                           }));
  }
}

void Session::acknowledge() {
  if (state_ != State::connected || unacknowledged_.is_empty()) return;
  unacknowledged_.clear();
  link_->send(OutgoingMessage::plain(FrameKind::received, accepted_));
}

// --- Messages of the peer ---

ServedCalls::Source Session::source(const Link& link) {
  return {.carrier = shared_from_this(), .loop = link.loop(), .caller = link.caller()};
}

void Session::on_request(const Link& link, std::shared_ptr<IncomingMessage> message, bool admitted) {
  // If this agent ends without a goodbye, its peers consider it lost. So no peer may receive an answer
  // afterwards.
  if (core_->ended()) return;
  if (is_kept_) {
    const auto first = static_cast<std::uint32_t>(frames_.first());
    const auto ahead = static_cast<std::int32_t>(message->request().accepted - first);
    if (ahead > 0) acknowledged(frames_.first() + static_cast<std::uint32_t>(ahead));
  }
  if (served_.accept(source(link), std::move(message), admitted, is_full(), accepted_))
    count(requests_received_);
}

void Session::on_skipped(const Link& link, const Prefix& prefix) {
  if (prefix.kind != FrameKind::request || core_->ended()) return;
  count(requests_received_);  // most methods are not background methods
  served_.skip(source(link), prefix);
}

// While more bytes of replies are kept than the peer accepts at a time, its further requests wait. So a peer
// that reads slowly delays only itself. Reading continues meanwhile: two agents whose replies pile up towards
// each other would otherwise wait for each other.
void Session::serve_waiting() {
  while (served_.has_waiting() && !(is_full() && state_ != State::over)) served_.serve_next(loop());
}

void Session::check_fits(const OutboundFrame& frame) const {
  check_outgoing(frame, core_->options().limits);
  check_outgoing(frame, peer_limits_, "the peer's");
}

void Session::send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) {
  if (is_over()) return;  // the loop may not run any more
  frame.sent = [active = std::move(active)] {};
  Reply reply{call_id, std::move(frame)};
  if (jobs_.is_first_here()) return answer(std::move(reply));
  jobs_.push(shared_from_this(), std::move(reply));
}

void Session::send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall active) {
  if ((request.flags & frame_flags::notify) != 0)
    return core_->log().write_some(
        "notifications failed", core_->loops().front(),
        "a notification from " + peer_.name + " failed: " + failure.method + ": " + failure.message,
        {{log_fields::peer, peer_.name},
         {log_fields::method, failure.method},
         {log_fields::call, std::to_string(request.call_id)},
         {log_fields::kind, to_string(failure.kind)}});
  OutboundFrame frame = OutgoingMessage::failure(request.call_id, failure);
  // The error is more important than its payload.
  if (failure.payload != nullptr && !capture([&] { check_fits(frame); })) {
    FailureInfo bare = failure;
    bare.payload = nullptr;
    frame = OutgoingMessage::failure(request.call_id, bare);
  }
  send_reply(request.call_id, std::move(frame), std::move(active));
}

void Session::answer(Reply&& reply) {
  const std::uint64_t accepted = served_.answered(reply.call_id);
  if (state_ == State::over) return;
  if (accepted == 0) {  // a refusal
    if (is_full() && frames_.refusals() >= max_refusals)
      return core_->session_lost(
          shared_from_this(),
          Error(ErrorKind::resource_exhausted,
                "the peer does not read its replies: " + std::to_string(frames_.refusals()) +
                    " refusals and " + std::to_string(frames_.reply_bytes()) +
                    " bytes are not acknowledged, the limits are " + std::to_string(max_refusals) + " and " +
                    std::to_string(max_replies_) + " (Limits::in_flight)"));
  } else if (accepted == accepted_ && state_ == State::connected) {
    unacknowledged_.clear();  // the reply acknowledges its request
  }
  core_->counters().bytes_sent.add(reply.frame.bytes());
  keep({.frame = std::move(reply.frame),
        .kind = FrameKind::reply,
        .call_id = reply.call_id,
        .is_refusal = accepted == 0});
  transmit();
  if (state_ != State::connected && is_full() && core_->sessions().keeps_too_much())
    core_->session_lost(
        shared_from_this(),
        Error(ErrorKind::peer_lost, peer_.name + " is absent, and the replies that are kept for it exceed "
                                                 "Limits::in_flight, those of all peers in_flight_total"));
}

void Session::call_ended(const EndedCall& ended) {
  if (!ended.was_refused) core_->accounts()->release(ended.bytes, ended.control);
  if (is_over()) return;
  const auto forget = [ended](Session& self) {
    const auto credit = self.served_.ended(ended);
    if (!credit || self.state_ == State::over) return;
    if (self.frames_.credits() >= max_refusals)
      return self.core_->session_lost(self.shared_from_this(),
                                      Error(ErrorKind::resource_exhausted,
                                            "the peer does not acknowledge the credit of its notifications"));
    self.keep({.frame = OutgoingMessage::credit(*credit), .kind = FrameKind::credit});
    self.transmit();
  };
  if (jobs_.is_first_here()) return forget(*this);
  jobs_.push(shared_from_this(), Callback([self = shared_from_this(), forget] { forget(*self); }));
}

// --- Its end ---

void Session::end(const Error& reason, const std::optional<Error>& cause) {
  if (state_ == State::over) return;
  leave_link();
  state_ = State::over;
  why_over_ = reason;
  cause_ = cause;
  for (const auto& link : std::exchange(links_, {})) link->close_soon(reason);
  frames_.clear(cause, reason);
  note_kept();
  for (const auto& call : calls_.take_all()) call->lose(cause, reason.kind(), reason.what());
  for (const auto& call : calls_.take_held()) decline(call);
  served_.cancel_all();
  serve_waiting();  // those that were cancelled end at once
}

// The loop may never run again, so the jobs that wait run here.
void Session::end_on(const Loop& loop, const Error& reason) {
  if (!is_at(loop)) return;
  end(reason, core_->job_error_of_ends());
  jobs_.run_all(shared_from_this(), loop);
}

}  // namespace weft::rpc
