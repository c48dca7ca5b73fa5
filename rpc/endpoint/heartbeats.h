// Heartbeats: the silence of a link's peer, and the heartbeats that this side has queued.
//
// Silence is counted in beats and not in time, so that a period in which this process was stopped counts as
// one beat. One silent beat proves nothing: the other side may send nothing between two beats of this side.
// While a ping or a pong is queued, no second one is queued, so the queue does not grow if a peer sends pings
// and reads nothing. Owned by its link. Thread-safety: none.
#pragma once

#include <weft/rpc/wire/frame.h>

#include <cstdint>
#include <utility>

namespace weft::rpc {

class Heartbeats {
 public:
  // A beat of this side. received: the bytes that the peer has sent so far. Returns the number of beats since
  // anything was received; 0: nothing is proven.
  std::int64_t beat(std::uint64_t received) {
    silent_ = received == std::exchange(received_, received) ? silent_ + 1 : 0;
    return silent_ > 1 ? silent_ : 0;
  }
  // A frame was sent, so the next beat needs no ping.
  void spoke() { has_spoken_ = true; }
  bool needs_ping() { return !std::exchange(has_spoken_, false); }
  // kind: ping or pong. queue(): false: one is queued already.
  bool queue(FrameKind kind) { return !std::exchange(is_queued(kind), true); }
  void left(FrameKind kind) { is_queued(kind) = false; }

 private:
  bool& is_queued(FrameKind kind) { return kind == FrameKind::ping ? has_ping_ : has_pong_; }

  std::uint64_t received_ = 0;
  std::int64_t silent_ = 0;
  bool has_spoken_ = false, has_ping_ = false, has_pong_ = false;
};

}  // namespace weft::rpc
