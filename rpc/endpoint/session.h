// Session: the messages between this agent and one incarnation of a peer, over successive connections.
//
// The session numbers the frames of calls (requests, replies, cancellations, credit), sends them over the
// connection in use, keeps them until the peer has acknowledged them, and sends them again over the next
// connection. So each frame arrives once and in order, until the peer is gone. Two agents use one connection
// at a time: the agent with the smaller id chooses it (choose()); the other answers, and asks if it has none.
// See docs/internals/wire_protocol.md, "Sessions". A peer without features::sessions has a session for each
// connection, which ends with it; the same applies to the calls of an agent to itself.
//
// A session belongs to the loop of the connection in use, and moves with it. Its jobs run one after another,
// in the order in which they were pushed; that makes up for locks. Owned by Sessions, links, routes and
// calls. Thread-safety: functions may be called from any thread, unless they are marked "on the session's
// loop".
#pragma once

#include <weft/rpc/endpoint/moving_jobs.h>
#include <weft/rpc/endpoint/outgoing_calls.h>
#include <weft/rpc/endpoint/sent_frames.h>
#include <weft/rpc/endpoint/served_calls.h>

#include <atomic>
#include <variant>

namespace weft::rpc {

class Link;

// The frames of a peer that a session has accepted and not acknowledged yet, and when it has to acknowledge
// them.
//
// A request acknowledges all accepted frames, and a reply acknowledges its request and earlier frames. Other
// frames are acknowledged at once if they are many, with the next frame that is sent if they are some, at the
// end of the loop's turn if the peer waits for it, and after a delay if they are large. Otherwise the next
// heartbeat acknowledges them.
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

class WEFT_EXPORT Session final : public Carrier, public std::enable_shared_from_this<Session> {
 public:
  // is_kept: the peer has features::sessions. number: as number(); the session's number if this agent is the
  // chooser.
  Session(std::shared_ptr<AgentCore> core, AgentId peer, std::shared_ptr<Loop> loop, const HelloInfo& hello,
          bool is_kept, std::uint64_t number);

  // The bytes of unacknowledged replies that this side accepts (HelloInfo::max_replies): more than it leaves
  // unacknowledged.
  static std::uint64_t replies_in_flight(const Limits& limits);

  // The peer, and whether frames are kept until the peer has acknowledged them. Both are constant.
  const AgentId& peer() const { return peer_; }
  bool is_kept() const { return is_kept_; }
  std::uint64_t number() const { return own_number_; }  // unique among the sessions of this agent
  bool was_used() const { return was_used_; }           // a frame was sent or accepted, or a call was made
  bool is_connected() const { return state_ == State::connected; }  // a connection is in use
  bool is_leaving() const { return is_leaving_; }                   // the peer accepts no new calls
  bool is_over() const override { return state_ == State::over; }
  // The number of requests so far, without those of background methods.
  std::uint64_t requests_sent() const { return requests_sent_; }
  std::uint64_t requests_received() const { return requests_received_; }
  std::uint64_t kept_bytes() const { return kept_bytes_; }  // of frames that are not acknowledged

  // --- Calls of this side ---
  // Sends the call as soon as there is a connection and credit. Calls arrive in the order of submit().
  void submit(std::shared_ptr<PendingCall> call);
  void cancel(std::uint64_t call_id) override;
  void fail_calls(const Error& error);  // the session continues

  // --- Calls of the peer (Carrier) ---
  void check_fits(const OutboundFrame& frame) const override;
  void send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) override;
  void send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall active) override;
  void call_ended(const EndedCall& ended) override;

  // --- Connections: called by the link on its loop ---
  void add(std::shared_ptr<Link> link);  // the handshake has succeeded
  void on_resume(std::shared_ptr<Link> link, const ResumeInfo& info);
  void peer_leaves() { is_leaving_ = true; }
  // The link has ended. may_return: the peer may still exist and connect again.
  void lost(std::shared_ptr<Link> link, const Error& reason, bool may_return);
  // Of the link in use only, so on the session's loop. arrived(): counts the frame as accepted.
  void arrived(const Prefix& prefix);
  void on_request(const Link& link, std::shared_ptr<IncomingMessage> message, bool admitted);
  void on_reply(std::shared_ptr<IncomingMessage> message);
  void on_cancel(std::uint64_t call_id) { served_.cancel(call_id); }
  void on_credit(const CreditInfo& credit);
  void on_skipped(const Link& link, const Prefix& prefix);
  void on_received(std::uint64_t count);
  bool awaits(std::uint64_t call_id) const { return calls_.awaits(call_id); }
  void acknowledge();

  // --- Its end ---
  // Runs `job` on the session's loop, after earlier jobs: at once if that is possible.
  template <class Job>
  void run(Job job) {
    if (jobs_.is_first_here()) return job();
    jobs_.push(shared_from_this(), Callback(std::move(job)));
  }
  // On the session's loop. The calls fail with `cause`, or without one with `reason`.
  void end(const Error& reason, const std::optional<Error>& cause);
  // For the shutdown of the agent, on this loop: ends the session if it belongs to the loop.
  void end_on(const Loop& loop, const Error& reason);

  // --- For reports, on the session's loop ---
  bool is_at(const Loop& loop) const { return jobs_.is_at(loop); }
  const OutgoingCalls& calls() const { return calls_; }
  const ServedCalls& served() const { return served_; }

 private:
  enum class State : std::uint8_t { unconnected, moving, joining, connected, absent, over };
  struct Reply {
    std::uint64_t call_id = 0;
    OutboundFrame frame;
  };
  using Job = std::variant<Callback, std::shared_ptr<PendingCall>, Reply>;

  friend MovingJobs<Session, Job>;
  void run_job(Job&& job);

  void choose(const std::shared_ptr<Link>& link);
  void take(const std::shared_ptr<Link>& link, std::uint64_t epoch, std::uint64_t peer_accepted);
  void begin_use();
  void ask();
  void on_answer(const std::shared_ptr<Link>& link, const ResumeInfo& info);
  void on_choice(const std::shared_ptr<Link>& link, const ResumeInfo& info);
  void check_accepted(std::uint64_t count) const;
  bool is_mine(const std::shared_ptr<Link>& link) const;
  std::shared_ptr<Link> unused() const;
  void leave_link();
  void connected();
  void close_surplus();
  void look_for_connection(const Error& reason, bool may_return);
  void fail_fast_calls(const Error& reason);
  void renew(const std::shared_ptr<Link>& link, const Error& reason, const ResumeInfo& info);

  const std::shared_ptr<Loop>& loop() const { return jobs_.loop(); }
  void enter(std::shared_ptr<PendingCall> call);
  void decline(const std::shared_ptr<PendingCall>& call);
  void dispatch_held();
  void dispatch(const std::shared_ptr<PendingCall>& call);
  ServedCalls::Source source(const Link& link);
  void answer(Reply&& reply);
  bool is_full() const { return frames_.reply_bytes() >= max_replies_; }
  void serve_waiting();
  std::uint64_t keep(SentFrames::UnacknowledgedFrame&& frame);
  std::shared_ptr<PendingCall> withdraw(OutgoingCalls::SentCall& sent);
  void note_kept();
  void transmit();
  void acknowledged(std::uint64_t count);

  const std::shared_ptr<AgentCore> core_;
  const AgentId peer_;
  const bool is_kept_, is_chooser_;
  const std::uint64_t own_number_;
  Limits peer_limits_;  // of one frame
  const std::uint64_t max_replies_;
  std::atomic<bool> is_leaving_{false}, was_used_{false};
  std::atomic<std::uint64_t> requests_sent_{0}, requests_received_{0}, kept_bytes_{0};

  MovingJobs<Session, Job> jobs_;

  // The members below belong to the session's loop.
  std::atomic<State> state_{State::unconnected};  // written on the loop
  std::optional<Error> why_over_, cause_;
  std::uint64_t number_, epoch_ = 0;
  std::uint64_t peer_accepted_ = 0;           // as the peer has stated for the connection that is chosen
  bool is_new_ = true;                        // the peer has not answered yet
  std::shared_ptr<Link> link_;                // the connection in use, or chosen
  std::vector<std::shared_ptr<Link>> links_;  // all that are open, link_ among them
  SentFrames frames_;
  OutgoingCalls calls_;
  ServedCalls served_;
  std::uint64_t reported_ = 0;  // the bytes of frames_ that kept_total() contains
  std::uint64_t accepted_ = 0;  // frames of the peer
  Unacknowledged unacknowledged_;
  Loop::TimerId acknowledge_timer_ = 0;  // 0: none
};

}  // namespace weft::rpc
