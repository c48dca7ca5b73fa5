// SentFrames: the numbered frames that a session has sent, or is about to send, and that the peer has not
// acknowledged.
//
// The frames are numbered from 0, without gaps. After a lost connection they are sent again, in the same
// order. A notification completes here: when it was sent, or when the peer has acknowledged it. Owned by the
// session. Thread-safety: none.
#pragma once

#include <weft/rpc/call/pending_call.h>

#include <vector>

namespace weft::rpc {

class WEFT_EXPORT SentFrames {
 public:
  // A frame, and what follows its sending. call_id: of its prefix.
  struct UnacknowledgedFrame {
    OutboundFrame frame;                  // as it is sent for the first time
    FrameKind kind = FrameKind::request;  // of its prefix
    std::uint64_t call_id = 0;
    // PendingCall::SerializedCall::check; null: no argument is borrowed.
    std::shared_ptr<UniqueFunction<void()>> check = nullptr;
    std::shared_ptr<PendingCall> notification = nullptr;
    bool ends_when_sent = false;  // the notification completes when it was sent
    bool is_refusal = false;      // a reply without a call
    bool is_withdrawn = false;    // set by withdraw()
  };

  // The number of the first frame that is kept, and of the next frame.
  std::uint64_t first() const { return first_; }
  std::uint64_t end() const { return end_; }
  std::uint64_t keep(UnacknowledgedFrame&& frame);  // returns its number
  std::uint64_t unsent() const { return unsent_; }  // the number of the first unsent frame
  bool has_unsent() const { return unsent_ != end(); }
  OutboundFrame next();                // the first unsent frame, to be sent now
  void rewind() { unsent_ = first_; }  // nothing was sent over the connection that is used from now on
  // The peer has accepted this number of frames: drops them.
  void acknowledge(std::uint64_t count);
  // The call of the request with this number has ended at this side: keeps a cancellation instead of the
  // request, whose memory is released. No effect on a frame that was acknowledged.
  void withdraw(std::uint64_t number);
  // The ids of the calls whose requests were withdrawn, from the frame with this number on.
  std::vector<std::uint64_t> withdrawn_from(std::uint64_t number) const;
  // Drops all frames. The notifications among them fail.
  void clear(const std::optional<Error>& cause, const Error& reason);

  std::vector<std::shared_ptr<PendingCall>> notifications() const;  // those that are kept
  // Of the frames that are kept: replies without a call, and returns of credit.
  std::size_t refusals() const { return refusals_; }
  std::size_t credits() const { return credits_; }
  std::uint64_t bytes() const { return bytes_; }              // of all frames that are kept
  std::uint64_t reply_bytes() const { return reply_bytes_; }  // of the replies among them

 private:
  std::shared_ptr<PendingCall> drop_first();  // returns its notification; null: none
  void count(const UnacknowledgedFrame& kept, std::int64_t sign);

  UnacknowledgedFrame& at(std::uint64_t number) { return ring_[number & (ring_.size() - 1)]; }
  const UnacknowledgedFrame& at(std::uint64_t number) const { return ring_[number & (ring_.size() - 1)]; }

  std::vector<UnacknowledgedFrame> ring_;  // a frame is at its number; the size is a power of two
  std::uint64_t first_ = 0, unsent_ = 0, end_ = 0;
  std::uint64_t bytes_ = 0, reply_bytes_ = 0;
  std::size_t refusals_ = 0, credits_ = 0;
};

}  // namespace weft::rpc
