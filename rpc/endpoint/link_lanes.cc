// Link: its lanes, which are further connections to the same peer over which its stream is striped
// (rpc/transport/internal/striped_stream.h).
//
// The agent that has accepted the link offers a key, and the agent that has dialled it dials the lanes. Each
// lane is a link until both hellos have arrived. The hello of the agent that dials states the key plus the
// number of the lane, from 1. All steps are frames of kind `lane`, whose call_id is the key, `all_arrived` or
// `striped`. If a lane cannot be made, the link continues without lanes.
#include <weft/rpc/core/split_mix.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/transport/internal/striped_stream.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::size_t max_lanes = 16;
constexpr std::uint64_t all_arrived = 0;  // the agent that has accepted the link has all lanes
constexpr std::uint64_t striped = 1;      // the blocks after this frame are striped in this direction

}  // namespace

std::uint16_t Link::max_lanes_here() const {
  if (!connection_->is_network_flow()) return 0;
  return static_cast<std::uint16_t>(std::min(core_->options().lanes, max_lanes));
}

void Link::offer_lanes() {
  lanes_.resize(std::min(max_lanes_here(), hello_.lanes));
  missing_lanes_ = lanes_.size();
  if (is_dialled_ || lanes_.empty()) return;
  lane_key_ = (draw_random() >> 1) + striped + 1;
  send(OutgoingMessage::plain(FrameKind::lane, lane_key_));
}

void Link::on_lane_step(std::uint64_t step) {
  if (step == striped && striped_ != nullptr && striped_->stripe_reads()) {
    if (!is_dialled_) stripe_writes();
  } else if (step == all_arrived && is_dialled_) {
    peer_has_lanes_ = true;
    use_lanes();
  } else if (step > striped && step + lanes_.size() > step && is_dialled_ && lane_key_ == 0) {
    lane_key_ = step;
    const auto dialled = route_->dialled();
    for (std::size_t i = 1; i <= lanes_.size(); ++i)
      core_->transport(dialled.scheme)
          ->connect(
              dialled, loop(), core_->connection_options(route_->expected_agent()),
              while_alive(this, [key = step + i](Link& self, Result<std::shared_ptr<Connection>>&& made) {
                if (!made.ok()) return self.lanes_.clear();
                auto connection = std::move(made).get();
                if (self.state_ == State::ended)
                  return connection->close(Error(ErrorKind::aborted, "its connection has ended"));
                self.core_->adopt(std::move(connection), nullptr, self.shared_from_this(), key);
              }));
  } else {
    throw Error(ErrorKind::protocol_error, "bad frame: an unexpected step of lanes: " + std::to_string(step));
  }
}

// This link is a lane, and its peer has sent its hello. Once this side's hello was sent as well, its stream
// becomes a part of the stream of whole_.
void Link::become_lane() {
  if (!is_dialled_)
    for (const auto& link : core_->links().all())
      if (const std::uint64_t offered = link->lane_key_;
          link->ready() && !link->is_dialled_ && offered != 0 && lane_key_ - offered - 1 < max_lanes)
        whole_ = link;
  if (whole_ == nullptr || !connection_->is_network_flow() ||
      whole_->peer() != AgentId{hello_.name, hello_.incarnation} || whole_->caller()->identity != identity_)
    return close(Error(is_dialled_ ? ErrorKind::peer_lost : ErrorKind::permission_denied,
                       "a lane of an unknown connection, or of another peer"));
  state_ = State::lane;
  if (!hello_left_) return;
  auto stream = connection_->take_stream();
  if (stream == nullptr)
    return close(Error(ErrorKind::protocol_error, "bad frame: more than a Hello on a lane"));
  try {
    if (whole_->loop() != loop()) stream->move_to(whole_->loop());
  } catch (const std::exception& error) {
    stream->close();
    return on_closed(Error(ErrorKind::internal, error.what()));
  }
  whole_->loop()->post([whole = whole_, key = lane_key_.load(), lane = std::move(stream)]() mutable {
    const std::uint64_t i = key - whole->lane_key_ - 1;
    if (whole->state_ == State::ended || i >= whole->lanes_.size() || whole->lanes_[i] != nullptr) return;
    whole->lanes_[i] = std::move(lane);
    --whole->missing_lanes_;
    whole->use_lanes();
  });
  on_closed(Error(ErrorKind::shut_down, "it has become a lane"));
}

void Link::use_lanes() {
  if (lanes_.empty() || missing_lanes_ != 0 || (is_dialled_ && !peer_has_lanes_)) return;
  core_->counters().lanes_made.add(lanes_.size());
  striped_ = connection_->add_lanes(std::exchange(lanes_, {}));
  is_dialled_ ? stripe_writes() : send(OutgoingMessage::plain(FrameKind::lane, all_arrived));
}

void Link::stripe_writes() {
  OutboundFrame frame = OutgoingMessage::plain(FrameKind::lane, striped);
  frame.sent = [stream = striped_] { stream->stripe_writes(); };
  send(std::move(frame));
}

}  // namespace weft::rpc
