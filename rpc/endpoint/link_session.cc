// Link: resumable frames of the session, their order and their acknowledgements.
#include <weft/rpc/endpoint/link.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>

namespace weft::rpc {
namespace {

// The limits at which accepted frames are acknowledged. A resumable request acknowledges all accepted frames,
// and a resumable reply acknowledges its request and earlier frames. The other frames are acknowledged at
// once from many_frames or many_bytes on, with the next frame that is sent from few_frames or few_bytes on,
// and after acknowledge_after from large_bytes on. Below these limits, the next heartbeat acknowledges them.
constexpr std::uint64_t few_frames = 32, few_bytes = 1 << 20;
constexpr std::uint64_t many_frames = 256, many_bytes = 4 << 20;
constexpr std::uint64_t large_bytes = 1024;
constexpr auto acknowledge_after = std::chrono::milliseconds{20};

}  // namespace

void Link::join() {
  connection_->send(OutgoingMessage::plain(FrameKind::received,
                                           session_ != nullptr ? session_->accepted() : Session::over));
  if (session_ == nullptr || !session_->fresh()) return;
  counted_ = true;
  begin_session();
}

void Link::on_received(std::uint64_t count) {
  if (!protocol_.has(features::sessions))
    throw Error(ErrorKind::protocol_error, "bad frame: an acknowledgement on a connection without sessions");
  if (session_ == nullptr) return;  // the peer has been notified
  if (count == Session::over)
    return core_->lose(peer_, Error(ErrorKind::lease_lost, peer_.name + " declared this agent gone"));
  const bool first = !std::exchange(stated_, true);
  if (!session_->acknowledged(count)) {
    if (!first)
      throw Error(ErrorKind::protocol_error,
                  "bad frame: it acknowledges " + std::to_string(count) + " frames, more than were sent");
    // The peer continues a session that this agent has ended and forgotten (RecentMap).
    connection_->send(OutgoingMessage::plain(FrameKind::received, Session::over));
    return core_->lose(peer_,
                       Error(ErrorKind::peer_lost, peer_.name + " was gone, and its session has ended"));
  }
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
  // Frames that the peer has acknowledged over another link meanwhile are not sent.
  if (next.number != announced_) connection_->send(OutgoingMessage::plain(FrameKind::resume, next.number));
  announced_ = next.number + 1;
  if (next.counts) count(sent_);
  AgentCounters::count(core_->counters().bytes_sent, next.frame.bytes());
  write(std::move(next.frame));
}

void Link::transmit_soon(const std::shared_ptr<Link>& link) {
  link->loop()->dispatch([link] { link->transmit(); });
}

// Call it with the session's turn() locked.
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

// The sender counts a repeated request again, for this link (LinkTable::Requests).
void Link::count_repeated(InboundFrame&& frame) {
  if (frame.prefix.kind != FrameKind::request) return;
  const auto method =
      core_->methods().find(IncomingMessage(std::move(frame), core_->options().limits).request().method);
  if (method == nullptr || !method->background) count(received_);
}

void Link::acknowledge_soon() {
  if (unacknowledged_.frames >= many_frames || unacknowledged_.bytes >= many_bytes) return acknowledge();
  if (unacknowledged_.bytes < large_bytes || acknowledge_timer_ != 0) return;
  acknowledge_timer_ =
      loop()->schedule(later(loop()->now(), acknowledge_after), while_alive(this, [](Link& link) {
                         link.acknowledge_timer_ = 0;
                         if (link.unacknowledged_.bytes >= large_bytes) link.acknowledge();
                       }));
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
  charged->loop()->dispatch([charged, bytes = asked.bytes] {
    charged->window_.give_back(1, bytes);
    charged->send_held();
  });
}

}  // namespace weft::rpc
