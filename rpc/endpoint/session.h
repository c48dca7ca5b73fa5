// Session: the resumable messages between this agent and one incarnation of a peer, over any number of
// successive connections.
//
// The session keeps a resumable frame (frame_flags::resumable) until the peer has acknowledged the frame.
// Each side numbers the resumable frames that it sends, and counts the resumable frames that it has accepted.
// A session sends over one link at a time. When that link ends, the peer states its count on the next link
// (FrameKind::received). The sender then states the number of the next frame (FrameKind::resume), and sends
// the frames that the peer has not accepted, in the same order. The receiver drops frames that it has
// accepted already. See docs/internals/wire_protocol.md, "Sessions".
//
// Resumable calls wait for their answers in the session and not in a link, because the answer may arrive over
// another link. When the incarnation is gone (Sessions), the session ends: its calls fail, and calls that it
// serves are cancelled. Owned by Sessions and by links. Thread-safe: one mutex guards the state; calls
// complete while it is unlocked.
#pragma once

#include <weft/rpc/call/pending_call.h>
#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/id_map.h>
#include <weft/rpc/core/mutex.h>

#include <list>
#include <mutex>

namespace weft::rpc {

class IncomingCall;
class Link;

class WEFT_EXPORT Session final : public CancelTarget, public std::enable_shared_from_this<Session> {
 public:
  static constexpr std::uint64_t over = ~std::uint64_t{0};  // in place of a count: the session has ended

  // max_kept: bytes of answers and notifications that may wait for their acknowledgement. kept_total: these
  // bytes of all sessions of the agent. If it exceeds max_kept_total, a session without a link that exceeds
  // max_kept keeps no more answers.
  Session(AgentId peer, std::uint64_t id_seed, std::uint64_t max_kept,
          std::shared_ptr<std::atomic<std::uint64_t>> kept_total =
              std::make_shared<std::atomic<std::uint64_t>>(0),
          std::uint64_t max_kept_total = ~std::uint64_t{0});
  ~Session();

  const AgentId& peer() const { return peer_; }  // constant
  // used(): whether a resumable frame was sent or accepted, or a call waits. fresh(): whether no resumable
  // frame was sent, so that the peer's count is 0.
  bool used() const;
  bool fresh() const;
  bool ended() const { return is_over_; }             // end() was called
  std::uint64_t id_seed() const { return id_seed_; }  // for both tables of calls; secret

  // --- Sending ---
  struct Asked {
    std::shared_ptr<PendingCall> call;  // null: the call has ended
    std::uint64_t bytes = 0;            // the bytes of credit that the call uses
    std::weak_ptr<Link> charged = {};   // the link whose credit the call uses; null: none
    std::uint64_t number = 0;
  };
  // Calls are sent in the order of submit(), over the link in use. Without a link in use, they wait for the
  // next link. If the session has ended, the call fails.
  void submit(std::shared_ptr<PendingCall> call);
  std::shared_ptr<PendingCall> next_call(const Link& link);  // null: no call waits, or another link is in use
  // A frame to send.
  struct Next {
    OutboundFrame frame;
    std::uint64_t number = 0;
    bool counts = false;  // true: a request that Link::requests_sent() counts
  };
  // over: the session has ended. too_many: the session has no link, and too many bytes are kept for it and
  // for all peers; end it.
  enum class Keep : std::uint8_t { yes, too_many, over };
  // The result of passing a frame to the session.
  struct Kept {
    Keep keep = Keep::yes;
    std::optional<Next> next = {};  // the frame, if the given link is in use and has no earlier frame to send
  };
  // Keeps a request for the link in use. If the session has ended, the call fails. ends_when_sent: the call
  // is a notification that owns its attachments, so it completes when it was sent.
  Kept request(PendingCall::Sealed&& sealed, Asked asked, const Link& link, bool ends_when_sent);
  // Keeps an answer for the link in use. link: null if the call's link has ended.
  Kept answer(std::uint64_t call_id, OutboundFrame&& frame, const Link* link);
  // Whether the bytes of answers and notifications that are not acknowledged have reached max_kept. Then
  // notifications wait for their link's send_held(), and requests of the peer wait to be served. Like a
  // credit, the last frame may exceed the limit.
  bool is_full() const { return full_; }
  std::uint64_t acknowledged_frames() const;
  // The next frame for `link`. nullopt: no frame is unsent, or another link is in use.
  std::optional<Next> next(const Link& link);
  // The peer has accepted this number of frames. false: the number exceeds the frames that were sent.
  bool acknowledged(std::uint64_t count);
  // Like acknowledged(), with the low 32 bits of the number, which a request states. A request that is sent
  // again may state an old number, so a lower number than before has no effect.
  bool acknowledged_by_request(std::uint32_t low_bits);
  // The answer of the call has arrived, which also acknowledges the call and all earlier frames.
  std::optional<Asked> answered(std::uint64_t call_id);
  // A notification was sent.
  void notified(std::uint64_t call_id);
  void cancel(std::uint64_t call_id) override;  // no effect unless the call waits for its answer
  bool awaits(std::uint64_t call_id) const;     // whether the answer of the call is still expected

  // --- Receiving ---
  std::uint64_t accepted() const;
  // Locks the delivery. A link holds this lock while it delivers a frame, so that frames that arrive over two
  // links are delivered in order.
  std::unique_lock<std::mutex> turn() { return std::unique_lock(turn_); }
  // Counts the frame of that number as accepted, unless it was accepted before (repeated) or an earlier frame
  // has not arrived (gap).
  enum class Arrival : std::uint8_t { accepted, repeated, gap };
  Arrival arrive(std::uint64_t number);
  // serve(): the link of a call that is being served has ended, so another link sends the answer of the call.
  void serve(std::uint64_t call_id, std::weak_ptr<IncomingCall> call);
  void served(std::uint64_t call_id);  // the call was destroyed
  std::shared_ptr<IncomingCall> serving(std::uint64_t call_id) const;

  // --- Links ---
  // Makes this link the link in use. Returns the size of each request that is sent again: these bytes use the
  // link's credit. nullopt: the session has ended, or this link or another link is in use already. If another
  // link is in use, this link may replace it later.
  std::optional<std::vector<std::uint64_t>> use(const std::shared_ptr<Link>& link);
  // The link has ended. held: calls that waited for its credit. If the session has another link, that link
  // replaces it. If the session has ended, these calls fail.
  void leave(const Link& link, std::vector<std::shared_ptr<PendingCall>> held);

  // --- Its end ---
  // cause: the error with which the calls fail; nullopt: `reason`.
  void end(const Error& reason, const std::optional<Error>& cause = std::nullopt);
  void fail_calls(const Error& error);  // the session continues
  std::uint64_t kept_bytes() const;     // of frames that the peer has not acknowledged
  // Resumable calls in flight. sent(): calls that wait for an answer. waiting(): calls that wait to be sent.
  std::vector<std::shared_ptr<PendingCall>> sent() const;
  std::vector<std::shared_ptr<PendingCall>> waiting() const;
  std::vector<std::shared_ptr<IncomingCall>> orphans() const;  // calls served for links that have ended

 private:
  struct Frame {
    OutboundFrame frame;
    std::shared_ptr<UniqueFunction<void()>> check = nullptr;
    std::uint64_t call_id = 0, bytes = 0;
    FrameKind kind = FrameKind::request;
    bool notifies = false;
    bool ends_when_sent = false;
    bool counts = false;
    bool transmitted = false;
    bool is_bounded() const { return kind == FrameKind::reply || notifies; }  // whether max_kept limits it
  };
  std::uint64_t keep(Frame&& frame) WEFT_REQUIRES(mutex_);
  std::uint64_t end_of_kept() const WEFT_REQUIRES(mutex_) { return first_ + kept_.size(); }
  Next take_next() WEFT_REQUIRES(mutex_);
  std::optional<Next> next_if_last(const Link* link) WEFT_REQUIRES(mutex_);
  // Returns the link in use if its notifications need not wait any more (is_full()), otherwise null.
  std::shared_ptr<Link> drop_until(std::uint64_t count, std::list<Frame>& dropped) WEFT_REQUIRES(mutex_);
  void finish_notifications(const std::list<Frame>& dropped) WEFT_EXCLUDES(mutex_);
  std::optional<Asked> take(std::uint64_t call_id) WEFT_EXCLUDES(mutex_);

  const AgentId peer_;
  const std::uint64_t id_seed_;
  const std::uint64_t max_kept_;
  const std::shared_ptr<std::atomic<std::uint64_t>> kept_total_;
  const std::uint64_t max_kept_total_;

  // Locked during a delivery; lock it before mutex_. Not an rpc::Mutex, because turn() returns its lock.
  std::mutex turn_;

  mutable Mutex mutex_;
  // The frames that are kept, in the order of their numbers, from first_ on.
  std::list<Frame> kept_ WEFT_GUARDED_BY(mutex_);
  // The first frame that was not sent over the link in use.
  std::list<Frame>::iterator unsent_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;        // the number of unsent_
  std::uint64_t first_ WEFT_GUARDED_BY(mutex_) = 0;       // the number of the first frame of kept_
  std::uint64_t kept_bytes_ WEFT_GUARDED_BY(mutex_) = 0;  // of answers and notifications
  std::uint64_t accepted_ WEFT_GUARDED_BY(mutex_) = 0;
  IdMap<Asked> asked_ WEFT_GUARDED_BY(mutex_);
  IdMap<std::weak_ptr<IncomingCall>> serving_ WEFT_GUARDED_BY(mutex_);
  Fifo<std::shared_ptr<PendingCall>> waiting_ WEFT_GUARDED_BY(mutex_);
  std::weak_ptr<Link> link_ WEFT_GUARDED_BY(mutex_);                 // the link in use
  const Link* in_use_ WEFT_GUARDED_BY(mutex_) = nullptr;             // the link in use, for comparisons
  std::vector<std::weak_ptr<Link>> others_ WEFT_GUARDED_BY(mutex_);  // links that may replace the link in use
  std::optional<Error> ended_ WEFT_GUARDED_BY(mutex_);
  std::atomic<bool> is_over_{false};  // ended_ is set
  std::atomic<bool> full_{false};     // is_full(); written with mutex_ locked
};

}  // namespace weft::rpc
