// Link: calls of the peer, which this side serves.
#include <weft/rpc/endpoint/link.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>

namespace weft::rpc {
namespace {

constexpr auto between_looks = std::chrono::milliseconds{10};  // at replies that pile up

// The entry for a method that is not served. Layers above still read the sections of the call, and end the
// state that depends on the call. The caller knows the method's name; only the log line of a notification
// contains the id.
std::shared_ptr<const MethodEntry> no_method(std::uint64_t id) {
  MethodEntry entry;
  entry.non_blocking = true;
  entry.run = [id](std::shared_ptr<IncomingCall> call) {
    const std::string which = call->is_notification() ? " (id " + std::to_string(id) + ")" : "";
    call->refuse(Error(ErrorKind::not_found, "no such method on this agent" + which));
  };
  return std::make_shared<const MethodEntry>(std::move(entry));
}

}  // namespace

std::shared_ptr<IncomingCall> Link::serving(std::uint64_t call_id) {
  const auto* found = incoming_.find(call_id);
  auto call = found != nullptr ? found->call.lock() : nullptr;
  return call == nullptr && session_ != nullptr ? session_->serving(call_id) : call;
}

// A resumable call may have arrived over another link.
void Link::on_cancel(std::uint64_t call_id, bool resumable) {
  if (const auto call = serving(call_id)) return call->cancel();
  if (!resumable) return;
  const auto links = core_->links().to(peer_);
  // If the call's link has ended since the first search, the link is not in the table, and its calls are in
  // the session.
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

// Only the prefix of the message was read.
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
             " bytes: this agent has reached Limits::in_flight_total");
}

void Link::on_request(std::shared_ptr<IncomingMessage> message, bool admitted) {
  // If this agent ends without a goodbye, its peers consider it lost. So no peer may receive an answer
  // afterwards.
  if (core_->ended()) return;
  const Prefix prefix = message->prefix();
  const RequestInfo info = message->request();
  if (const auto session = session_of(prefix); session && !session->acknowledged_by_request(info.accepted))
    throw Error(ErrorKind::protocol_error,
                "bad frame: it acknowledges frames that were not sent: the low bits of their number are " +
                    std::to_string(info.accepted));
  auto method = core_->methods().find(info.method);
  if (method == nullptr) method = no_method(info.method);
  AgentCounters::count(core_->counters().calls_served);
  if (!method->background) count(received_);
  if (const auto& permissions = core_->options().permissions;
      permissions && !permissions->allows(caller_->identity, method->name)) {
    AgentCounters::count(core_->counters().calls_denied);
    const std::string who =
        caller_->identity.empty() ? "a peer without a proven identity" : caller_->identity;
    core_->log().write_some("calls denied", loop(),
                            peer_.name + " (" + who + ") may not call " + method->name,
                            {{log_fields::peer, peer_.name},
                             {log_fields::identity, caller_->identity},
                             {log_fields::method, method->name},
                             {log_fields::call, std::to_string(prefix.call_id)},
                             {log_fields::kind, to_string(ErrorKind::permission_denied)}});
    return refuse(prefix, *method, ErrorKind::permission_denied, who + " may not call this");
  }
  // The call is counted before draining() is read, because drain() sets draining() before it reads the number
  // of calls in flight.
  ActiveCall active(core_->accounts(), method->background);
  if (core_->draining() && !method->upkeep)
    return refuse(prefix, *method, ErrorKind::shut_down, "this agent is shutting down");
  if (incoming_.contains(prefix.call_id))
    throw Error(ErrorKind::protocol_error,
                "bad frame: the call id " + std::to_string(prefix.call_id) + " is used twice");
  const Limits& limits = core_->options().limits;
  // Each open stream has two requests in flight, and a few late requests.
  const bool room = method->upkeep
                        ? unanswered_.upkeep / 4 < core_->options().streams.max_per_peer
                        : unanswered_.calls / 2 < limits.calls && unanswered_.bytes / 2 < limits.in_flight;
  if (!room || !core_->accounts()->hold(message->bytes(), method->upkeep, admitted)) {
    AgentCounters::count(core_->counters().calls_shed);
    return refuse(prefix, *method, ErrorKind::resource_exhausted,
                  "too many requests in flight, or too many bytes in them: this connection has " +
                      std::to_string(unanswered_.calls + unanswered_.upkeep) + " requests with " +
                      std::to_string(unanswered_.bytes) + " bytes, and this agent has " +
                      std::to_string(core_->accounts()->served()) +
                      " (Limits::calls, in_flight, calls_total, in_flight_total)");
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
  const bool at_once = served.upkeep || (delayed_.empty() && !replies_pile_up());
  incoming_.insert(prefix.call_id, std::move(served));
  if (at_once) return serve(call);
  delayed_.push(std::move(call));
  watch_replies();
}

void Link::serve(const std::shared_ptr<IncomingCall>& call) {
  if (call->message().has_sections()) {
    call->host()->hooks().prepare(call);
  } else {
    call->run();
  }
}

// While more bytes of replies wait than Limits::in_flight, the peer's further requests wait, too. So a peer
// that reads slowly delays only itself, and the replies stay within the limit, plus those of requests that
// were served before. A peer that reads nothing for the heartbeat's timeout is disconnected. Reading
// continues meanwhile: two agents whose replies pile up towards each other would otherwise wait for each
// other.
bool Link::replies_pile_up() const {
  return (in_session() && session_->is_full()) ||
         (connection_ != nullptr && connection_->unsent_bytes() > core_->options().limits.in_flight);
}

void Link::watch_replies() {
  if (replies_timer_ != 0 || ended_) return;
  replies_timer_ = loop()->schedule(later(loop()->now(), between_looks), while_alive(this, [](Link& link) {
                                      link.replies_timer_ = 0;
                                      link.look_at_replies();
                                    }));
}

void Link::look_at_replies() {
  while (!delayed_.empty() && !replies_pile_up() && !ended_) serve(delayed_.pop());
  if (ended_ || (delayed_.empty() && !replies_pile_up())) return;
  const std::uint64_t read = connection_->sent_bytes() + (in_session() ? session_->acknowledged_frames() : 0);
  replies_unread_ = read == std::exchange(replies_read_, read) ? replies_unread_ + 1 : 0;
  const auto timeout = core_->options().heartbeat.timeout;
  // Counted in looks, so that a period in which this process was stopped counts as one.
  if (replies_unread_ > 1 && timeout.count() > 0 && replies_unread_ * between_looks >= timeout)
    return close(Error(
        ErrorKind::resource_exhausted,
        "the peer has not read its replies for " +
            std::to_string(std::chrono::duration<double>(timeout).count()) +
            " s: " + std::to_string(connection_->unsent_bytes()) + " bytes are unsent, the limit is " +
            std::to_string(core_->options().limits.in_flight) + " (Limits::in_flight, Heartbeat::timeout)"));
  watch_replies();
}

void Link::refuse(const Prefix& request, const MethodEntry& method, ErrorKind kind,
                  const std::string& message) {
  if ((request.flags & frame_flags::notify) != 0) {
    core_->log().write_some(
        "notifications dropped", loop(),
        "a notification from " + peer_.name + " was dropped: " + method.name + ": " + message,
        {{log_fields::peer, peer_.name},
         {log_fields::method, method.name},
         {log_fields::call, std::to_string(request.call_id)},
         {log_fields::kind, to_string(kind)}});
    if (method.upkeep) return;
    return give_credit(Prefix::size + request.header_words * std::uint64_t{8} + request.body_bytes);
  }
  // The peer's credit does not bound the number of refusals.
  if (replies_pile_up() && *refusals_ >= max_refusals)
    return close(Error(ErrorKind::resource_exhausted,
                       "a request was refused (" + message +
                           "), and the peer does not read its replies: " + std::to_string(*refusals_) +
                           " refusals and " + std::to_string(connection_->unsent_bytes()) +
                           " bytes are unsent, the limits are " + std::to_string(max_refusals) + " and " +
                           std::to_string(core_->options().limits.in_flight) + " (Limits::in_flight)"));
  ++*refusals_;
  send_failure(request, {kind, message, core_->id().name, method.name, {}, true},
               ActiveCall(core_->accounts()),
               std::shared_ptr<void>(refusals_.get(), [count = refusals_](void*) { --*count; }));
}

void Link::send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall active) {
  send_failure(request, failure, std::move(active), nullptr);
}

void Link::send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall&& active,
                        std::shared_ptr<void> refusal) {
  if ((request.flags & frame_flags::notify) != 0) {
    core_->log().write_some(
        "notifications failed", loop(),
        "a notification from " + peer_.name + " failed: " + failure.method + ": " + failure.message,
        {{log_fields::peer, peer_.name},
         {log_fields::method, failure.method},
         {log_fields::call, std::to_string(request.call_id)},
         {log_fields::kind, to_string(failure.kind)}});
    return;
  }
  OutboundFrame frame = OutgoingMessage::failure(request.call_id, failure);
  if (failure.payload != nullptr && !fits(frame)) {  // the error is more important than its payload
    FailureInfo bare = failure;
    bare.payload = nullptr;
    frame = OutgoingMessage::failure(request.call_id, bare);
  }
  if ((request.flags & frame_flags::resumable) != 0 && in_session())
    add_flag(frame.head.bytes(), frame_flags::resumable);
  frame.sent = [active = std::move(active), refusal = std::move(refusal)] {};
  send_reply(request.call_id, std::move(frame));
}

void Link::send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) {
  frame.sent = [active = std::move(active)] {};
  send_reply(call_id, std::move(frame));
}

void Link::send_reply(std::uint64_t call_id, OutboundFrame&& frame) {
  const auto send = [call_id](Link& link, OutboundFrame& reply) {
    Served* call = link.incoming_.find(call_id);
    if (call != nullptr) link.count_no_more(*call);
    if (has_flag(reply.head.bytes(), frame_flags::resumable) && link.session_ != nullptr) {
      // The reply acknowledges its request and earlier frames.
      if (call != nullptr && call->expected_next == link.expected_) link.unacknowledged_ = {};
      auto kept = link.session_->answer(call_id, std::move(reply), link.ended_ ? nullptr : &link);
      if (kept.next) link.transmit(std::move(*kept.next));
      if (kept.keep == Session::Keep::too_many)
        return link.core_->lose(
            link.peer_, Error(ErrorKind::peer_lost,
                              link.peer_.name + " is absent, and the replies that are kept for it exceed "
                                                "Limits::in_flight, those of all peers in_flight_total"));
    } else {
      link.answer(std::move(reply));
    }
    if (link.replies_pile_up()) link.watch_replies();
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

void Link::answer(OutboundFrame&& frame) {
  if (ended_) return;
  AgentCounters::count(core_->counters().bytes_sent, frame.bytes());
  write(std::move(frame));
}

void Link::give_credit(std::uint64_t bytes) {
  if (const auto credit = returns_.ended(bytes); credit && !ended_)
    connection_->send(OutgoingMessage::credit(*credit));
}

void Link::call_ended(const Gone& gone) {
  core_->accounts()->release(gone.bytes, gone.upkeep);
  if (gone.resumable && ended_ && session_ != nullptr) session_->served(gone.id);
  const auto forget = [gone](Link& link) {
    if (auto served = link.incoming_.take(gone.id)) link.count_no_more(*served);
    if (gone.deadline != 0) link.loop()->cancel(gone.deadline);
    if (gone.notification && !gone.upkeep) link.give_credit(Prefix::size + gone.bytes);
  };
  if (loop()->running_here()) return forget(*this);
  loop()->post([self = shared_from_this(), forget] { forget(*self); });
}

}  // namespace weft::rpc
