// Unacknowledged: the frames of a peer that a session has accepted and not acknowledged yet, and when it has
// to acknowledge them.
//
// A request acknowledges all accepted frames, and a reply acknowledges its request and earlier frames. Other
// frames are acknowledged at once if they are many, with the next frame that is sent if they are some, at the
// end of the loop's turn if the peer waits for it, and after a delay if they are large. Otherwise the next
// heartbeat acknowledges them. Owned by a Session; used on its loop.
#pragma once

#include <weft/rpc/wire/prefix.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace weft::rpc {

class Unacknowledged final {
 public:
  // When accept() wants an acknowledgement.
  enum class Due : std::uint8_t {
    later,        // with a later frame
    now,          // at once
    this_turn,    // at the end of the loop's turn
    after_delay,  // after `delay`, if is_large() still holds
  };

  // Frames of this many bytes are acknowledged at once.
  static constexpr std::uint64_t many_bytes = 4 << 20;
  static constexpr auto delay = std::chrono::milliseconds{20};
  // If the attachments of a notification have at most this size, its sender copies them, and the notification
  // completes when it was sent: copying takes less time than waiting for the acknowledgement.
  static constexpr std::uint64_t copied_bytes = 64 << 10;

  // Counts an accepted frame. this_turn is returned once, until turn_ended().
  Due accept(const Prefix& prefix) {
    ++frames_;
    bytes_ += Prefix::size + prefix.message_bytes();
    if (frames_ >= many_frames || bytes_ >= many_bytes) return Due::now;
    const bool is_awaited = (prefix.flags & frame_flags::acknowledge) != 0 ||
                            ((prefix.flags & frame_flags::notify) != 0 && prefix.body_bytes > copied_bytes);
    if (is_awaited) return std::exchange(is_posted_, true) ? Due::later : Due::this_turn;
    return is_large() ? Due::after_delay : Due::later;
  }
  void turn_ended() { is_posted_ = false; }
  void clear() { frames_ = bytes_ = 0; }  // all of them are acknowledged

  // Of the frames that are not acknowledged: whether there are none; whether they are worth a frame of their
  // own after a delay; and whether the next frame that is sent should acknowledge them.
  bool is_empty() const { return frames_ == 0; }
  bool is_large() const { return bytes_ >= large_bytes; }
  bool is_due_with_next_frame() const { return frames_ >= few_frames || bytes_ >= few_bytes; }

 private:
  static constexpr std::uint64_t few_frames = 32, few_bytes = 1 << 20, many_frames = 256, large_bytes = 1024;

  std::uint64_t frames_ = 0, bytes_ = 0;
  bool is_posted_ = false;
};

}  // namespace weft::rpc
