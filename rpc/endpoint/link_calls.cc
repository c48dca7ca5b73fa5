// Link: calls of this side.
#include <weft/rpc/endpoint/link.h>

#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>

namespace weft::rpc {
void Link::send(const std::shared_ptr<PendingCall>& call) {
  if (call->finished()) return;
  // Also checked here, because the call may have been in transit from its route's loop when the job failed.
  if (core_->job_ended()) {
    call->fail(*core_->job_error());
    return;
  }
  if (call->only() && *call->only() != peer_) {
    call->lose(ErrorKind::peer_lost,
               to_string(*call->only()) + " is gone: " + to_string(peer_) + " has replaced it");
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
  if (call->upkeep() || (held_.empty() && has_room_for(*call))) return dispatch(call);
  if (held_.size() >= prune_held_at_) {
    Fifo<std::shared_ptr<PendingCall>> live;
    while (!held_.empty())
      if (auto waiting = held_.pop(); !waiting->finished()) live.push(std::move(waiting));
    held_ = std::move(live);
    prune_held_at_ = std::max<std::size_t>(64, 2 * held_.size());
  }
  held_.push(call);
}

bool Link::has_room_for(const PendingCall& call) const {
  return window_.has_room() && !(call.notify() && call.resumable() && in_session() && session_->is_full());
}

void Link::send_held() {
  while (!held_.empty() && !ended_ && (held_.front()->finished() || has_room_for(*held_.front())))
    if (const auto call = held_.pop(); !call->finished()) dispatch(call);
}

void Link::send_held_soon(const std::shared_ptr<Link>& link) {
  link->loop()->dispatch([link] { link->send_held(); });
}

void Link::on_credit(const CreditInfo& credit) {
  window_.give_back(credit.calls, credit.bytes);
  send_held();
}

void Link::dispatch(const std::shared_ptr<PendingCall>& call) {
  const auto session = call->resumable() ? this->session() : nullptr;
  std::optional<PendingCall::Sealed> sealed;
  try {
    PendingCall::Departure departure{.sent_by = {}, .peer = peer_, .accepted = {}};
    if (session != nullptr) {
      departure.sent_by = session;
      departure.accepted = session->accepted();
    } else {
      departure.sent_by = weak_from_this();
    }
    sealed = call->take_frame(call, *loop(), departure);
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
  std::uint64_t bytes = frame->head.size();  // counted as the other side counts
  for (const Buffer& attachment : frame->attachments) bytes += padded(attachment.size());
  if (session != nullptr) {
    unacknowledged_ = {};  // the request acknowledges the frames that this side has accepted
    // A notification with larger attachments completes when it is acknowledged: until then it may be sent
    // again, and its attachments are borrowed.
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
    if (kept.keep != Session::Keep::over) return kept.next ? transmit(std::move(*kept.next)) : transmit();
    if (!call->upkeep()) window_.give_back(1, bytes);
    return;
  }
  if (!call->background()) count(sent_);
  AgentCounters::count(core_->counters().bytes_sent, bytes);
  const bool charged = !call->upkeep();
  if (charged) window_.use(bytes);
  pending_.insert(call->id(), {call, charged ? 1U : 0U, charged ? bytes : 0});
  awaited_ = pending_.size();
  if (call->notify()) {
    frame->sent = [weak = weak_from_this(), call, first = std::move(frame->sent)]() mutable {
      if (first) first();
      // The peer sends no reply, and returns the credit later.
      if (const auto link = weak.lock()) link->take(call->id());
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
  if (!loop()->running_here())
    return loop()->post([self = shared_from_this(), call_id] { self->cancel(call_id); });
  Asked* asked = pending_.find(call_id);
  if (asked == nullptr || asked->call == nullptr || ended_) return;
  asked->call = nullptr;  // the answer will still arrive and return the credit
  connection_->send(OutgoingMessage::plain(FrameKind::cancel, call_id));
}

std::optional<Link::Asked> Link::take(std::uint64_t call_id) {
  auto asked = pending_.take(call_id);
  awaited_ = pending_.size();
  return asked;
}

// A reply with an RRef is resumable even if its call was not. It then arrives over the link that the session
// uses, and the call may wait in another link. The number of its calls is all that this loop can read.
bool Link::awaits(const Prefix& reply) {
  if (pending_.contains(reply.call_id)) return true;
  if (session_ == nullptr) return false;
  if (session_->awaits(reply.call_id)) return true;
  if ((reply.flags & frame_flags::resumable) == 0) return false;
  const auto links = core_->links().to(peer_);
  return std::any_of(links.begin(), links.end(), [](const auto& link) { return link->awaited_ != 0; });
}

void Link::fail_pending(const Error& error) {
  awaited_ = 0;
  for (auto& [id, asked] : pending_.take_all()) {
    window_.give_back(asked.calls, asked.bytes);
    if (asked.call != nullptr) asked.call->fail(error);
  }
  while (!held_.empty()) held_.pop()->fail(error);
}

void Link::on_reply(std::shared_ptr<IncomingMessage> message) {
  // Even if the call has ended, because the reply may pass references to this agent.
  if (message->has_sections())
    for (const auto& hook : core_->hooks().all()) hook->replied(*message, peer_);
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
  // The answer may arrive over another link than the call: the link that the session of the peer uses.
  for (const auto& other : core_->links().to(peer_))
    if (other.get() != this)
      other->loop()->post([other, id, message]() mutable { other->finish_call(id, std::move(message)); });
}

bool Link::finish_call(std::uint64_t call_id, std::shared_ptr<IncomingMessage>&& answer) {
  const auto asked = take(call_id);
  if (!asked) return false;
  window_.give_back(asked->calls, asked->bytes);
  if (asked->call != nullptr) asked->call->finish(std::move(answer));
  if (!held_.empty()) send_held();
  return true;
}

}  // namespace weft::rpc
