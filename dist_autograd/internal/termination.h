// Termination: detects when a backward that spreads over workers has completed everywhere, after Dijkstra and
// Scholten (Termination detection for diffusing computations, Inf. Proc. Letters 11, 1980).
//
// The first message that reaches an idle worker engages it, and is acknowledged only when that worker is idle
// again and all its messages are acknowledged. Every other message is acknowledged at once. So when the first
// worker is idle, all workers are idle, even if messages were sent in cycles. Here a message is a call, and
// its reply is the acknowledgement. Each worker has one object for each backward and uses it on the pass's
// serial executor. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>

namespace weft::dist_autograd {

// Ack: a callable, called once.
template <class Ack>
class Termination {
 public:
  // A message arrived. True: it engages this worker, which keeps the acknowledgement; false: acknowledge it
  // now.
  bool engage(Ack& ack) {
    if (engaged_) return false;
    engaged_ = true;
    ack_ = std::move(ack);
    return true;
  }
  void sent() { ++unacknowledged_; }
  void acknowledged() { --unacknowledged_; }
  bool awaits() const { return unacknowledged_ != 0; }  // some messages of this worker are not acknowledged

  // Call it when the worker has nothing to do. Returns true, and sets `ack` to the acknowledgement to send,
  // if the worker was engaged and has now disengaged.
  bool idle(Ack& ack) {
    if (!engaged_ || unacknowledged_ != 0) return false;
    return disengage(ack);
  }
  // Disengages at once, after a failure. Sets `ack` as idle() does.
  bool disengage(Ack& ack) {
    if (!engaged_) return false;
    engaged_ = false;
    ack = std::move(ack_);
    return true;
  }

 private:
  bool engaged_ = false;
  std::size_t unacknowledged_ = 0;
  Ack ack_{};
};

}  // namespace weft::dist_autograd
