// Link: one connection between this agent and a peer, from the handshake to its end.
//
// A link belongs to its connection's loop; functions are called there unless stated otherwise. Both sides
// send a Hello at once; requests wait until the Hello of the peer has arrived. When the connection ends,
// every call on it fails. Each link is owned by LinkTable and by its calls.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/call/pending_call.h>
#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/id_map.h>
#include <weft/rpc/endpoint/credit.h>
#include <weft/rpc/endpoint/link_lanes.h>
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/wire/protocol.h>

#include <atomic>

namespace weft::rpc {

class AgentCore;
class Route;

class WEFT_EXPORT Link final : public Carrier,
                               public ConnectionObserver,
                               public std::enable_shared_from_this<Link> {
 public:
  // route: the route that dialled; null for an accepted connection. number: Carrier::number().
  Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
       std::shared_ptr<Route> route);
  ~Link() override;

  // Called once: sends the hello and begins to receive. The link closes with deadline_exceeded if the peer's
  // hello does not arrive within AgentOptions::handshake_timeout. If the agent is draining, an accepted link
  // ends at once.
  void open();

  // true: the link accepts new calls. upkeep: true for calls of upkeep methods, which are also sent to a peer
  // that is leaving (CallSettings::upkeep). Any thread.
  bool usable(bool upkeep = false) const { return ready_ && !ended_ && (upkeep || !peer_leaving_); }
  bool ready() const { return ready_; }                   // any thread
  bool is_open() const override { return !ended_; }       // any thread
  const AgentId& peer() const { return peer_; }           // any thread, once ready
  const Protocol& protocol() const { return protocol_; }  // the negotiated protocol; any thread, once ready
  // Throws resource_exhausted if the frame exceeds a limit of this side or of the peer. Any thread, once
  // ready.
  void check_fits(const OutboundFrame& frame) const override;
  bool fits(const OutboundFrame& frame) const;                            // true: check_fits() does not throw
  const std::shared_ptr<LinkLanes>& lanes() const { return lanes_; }      // any thread
  std::optional<HostPair> hosts() const { return connection_->hosts(); }  // of a link that has not ended

  // The session with the peer, for resumable calls. null: the session does not exist, or it has ended. Any
  // thread, once ready.
  std::shared_ptr<Session> session() const { return in_session() ? session_ : nullptr; }
  bool in_session() const override { return session_ != nullptr && !session_->ended(); }
  // The session of a frame; null: the frame is not resumable, or the session has ended.
  Session* session_of(const Prefix& frame) const {
    return (frame.flags & frame_flags::resumable) != 0 && in_session() ? session_.get() : nullptr;
  }
  bool had_session() const { return session_ != nullptr; }  // any thread, once ready
  void join();           // called when the peer's hello has arrived: states this side's count
  void begin_session();  // sends the session's frames over this link, unless the session uses another link
  void transmit();       // sends the session's next frames, if the session uses this link
  static void transmit_soon(const std::shared_ptr<Link>& link);  // transmit() on the link's loop; any thread
  // Sends the calls that wait on this link for credit or for Session::is_full(); any thread.
  static void send_held_soon(const std::shared_ptr<Link>& link);
  // Sends the calls that wait in the session, if the session uses this link.
  void send_waiting();
  void enter(const std::shared_ptr<PendingCall>& call);  // sends the call as soon as there is credit

  // Passes the call to its session or to enter(). If the call must not be sent, it fails.
  void send(const std::shared_ptr<PendingCall>& call);
  void cancel(std::uint64_t call_id) override;  // cancels the call at the callee; any thread
  // Cancels resumable calls that this agent serves; called when their session has ended.
  void cancel_resumable();
  void say_goodbye();                         // asks the peer to send no new requests
  void close(const Error& reason);            // at once: drops queued frames and fails the calls
  void finish(const Error& reason);           // fails the calls, sends queued frames, closes
  void expel(const Error& reason);            // like finish(), with peer_lost; sends the reason to the peer
  void end_incarnation(const Error& reason);  // like finish(); informs the peer that this agent has ended
  void fail_pending(const Error& error);      // fails the calls in flight; the link stays open

  // Sends the reply to a call that arrived over this link; any thread. `active` is destroyed when the reply
  // has been sent, or cannot be sent any more.
  void send_reply(std::uint64_t call_id, OutboundFrame&& frame, ActiveCall&& active) override;
  // The failure of a notification is logged.
  void send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall active) override;
  void call_ended(const Gone& gone) override;

  // Calls in flight over this connection, the oldest first.
  std::vector<std::shared_ptr<PendingCall>> sent() const;
  std::vector<std::shared_ptr<PendingCall>> held() const;  // waiting for credit
  std::vector<std::shared_ptr<IncomingCall>> incoming() const;
  // The credit that the peer has granted, and the part in use.
  const CreditWindow& credit() const { return window_; }
  // The number of requests so far, not counting requests of background methods. Any thread.
  std::uint64_t requests_sent() const { return sent_; }
  std::uint64_t requests_received() const { return received_; }
  std::uint64_t id_seed() const { return incoming_.seed(); }  // the seed of both IdMaps; secret

  void on_frame(InboundFrame&& frame) override;
  bool awaits(const Prefix& reply) override;
  void on_skipped(const Prefix& message) override;
  void on_closed(const Error& reason) override;

 private:
  // If the attachments of a resumable notification have at most this size, the link copies them, and the
  // notification completes when it was sent: copying takes less time than waiting for the acknowledgement.
  static constexpr std::uint64_t copied_bytes = 64 << 10;

  // Refusals that may wait to be sent while the peer does not read its replies.
  static constexpr std::size_t max_refusals = 4096;

  struct Served {
    std::weak_ptr<IncomingCall> call = {};
    std::uint64_t bytes = 0;
    std::uint64_t expected_next = 0;  // expected_ after this request; 0: the request is not resumable
    bool upkeep = false;
    // true: the call is counted in unanswered_. It is counted until its reply, which returns the credit, or
    // until it is destroyed.
    bool counted = true;
  };

  void on_hello(IncomingMessage& message);
  void refuse_peer(const Error& reason);  // sends the reason to the peer, and closes
  bool check_user(const std::string& name, const std::string& identity);  // false: not admitted
  bool admit(const AgentId& peer, const HelloInfo& hello, const std::string& identity);
  void end_handshake();
  // refusal: kept until the frame is sent.
  void send_failure(const Prefix& request, const FailureInfo& failure, ActiveCall&& active,
                    std::shared_ptr<void> refusal);
  void send_reply(std::uint64_t call_id, OutboundFrame&& frame);
  void become_lane();  // turns this connection into a lane of another link, if the hello was sent
  void on_request(std::shared_ptr<IncomingMessage> message, bool admitted);
  // Ends the call with this answer. false: the call was not made over this link, and `answer` is unchanged.
  bool finish_call(std::uint64_t call_id, std::shared_ptr<IncomingMessage>&& answer);
  void on_reply(std::shared_ptr<IncomingMessage> message);
  void on_cancel(std::uint64_t call_id, bool resumable);
  std::shared_ptr<IncomingCall> serving(std::uint64_t call_id);  // null: no such call
  void on_received(std::uint64_t count);
  void transmit(Session::Next&& next);
  bool arrive(const Prefix& prefix);  // false: do not deliver the frame
  void count_repeated(InboundFrame&& frame);
  void acknowledge();
  void acknowledge_soon();
  void give_back(const Session::Asked& asked);
  void write(OutboundFrame&& frame);  // sends the frame, with the acknowledgement that is due
  void on_credit(const CreditInfo& credit);
  void dispatch(const std::shared_ptr<PendingCall>& call);  // sends the call, and uses credit
  bool has_room_for(const PendingCall& call) const;
  void send_held();
  void count_no_more(Served& call);
  void give_credit(std::uint64_t bytes);  // returns the credit of a notification to the peer
  void beat();
  void await_beat();
  void send_beat(FrameKind kind, std::uint64_t id);
  void refuse(const Prefix& request, const MethodEntry& method, ErrorKind kind, const std::string& message);
  void answer(OutboundFrame&& frame);
  static void serve(const std::shared_ptr<IncomingCall>& call);  // prepares and runs the call
  bool replies_pile_up() const;
  void watch_replies();
  void look_at_replies();

  // Adds one request to the counter, which is written on the loop only.
  static void count(std::atomic<std::uint64_t>& requests) {
    requests.store(requests.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::shared_ptr<AgentCore> core_;
  std::shared_ptr<Connection> connection_;  // null once the connection has ended; used on the loop
  const std::shared_ptr<LinkLanes> lanes_;
  std::shared_ptr<Route> route_;
  std::atomic<bool> ready_{false};  // the peer's Hello has arrived
  bool hello_left_ = false;         // this side's Hello was sent
  std::optional<LaneInfo> lane_;    // the connection is a lane of another link
  bool handshaking_;                // the connection was accepted, and the peer's Hello has not arrived
  std::atomic<bool> ended_{false};
  std::atomic<bool> peer_leaving_{false};
  bool end_is_proven_ = false;  // the peer itself is lost, not only the connection
  AgentId peer_;
  Limits peer_limits_;                    // the limits of one frame, from the peer's Hello
  std::shared_ptr<const Caller> caller_;  // the peer, for handlers
  Loop::TimerId handshake_timer_ = 0;
  struct Asked {
    std::shared_ptr<PendingCall> call;   // null: the call has ended, but its credit is still in use
    std::uint64_t calls = 0, bytes = 0;  // the credit that the call uses
  };
  std::optional<Asked> take(std::uint64_t call_id);  // removes the call from pending_
  IdMap<Asked> pending_;
  std::atomic<std::size_t> awaited_{0};      // the size of pending_, for other loops
  CreditWindow window_;                      // for the requests of this side
  Fifo<std::shared_ptr<PendingCall>> held_;  // calls that wait for credit
  std::atomic<std::uint64_t> sent_{0}, received_{0};
  std::size_t prune_held_at_ = 64;  // the size at which ended calls are removed from held_
  IdMap<Served> incoming_;
  struct {
    std::uint64_t calls = 0, bytes = 0;  // calls that use credit
    std::uint64_t upkeep = 0;            // calls that use no credit
  } unanswered_;
  const std::shared_ptr<std::atomic<std::size_t>> refusals_ =
      std::make_shared<std::atomic<std::size_t>>(0);  // that are not sent yet
  CreditReturns returns_;
  // Requests that wait until the peer has read earlier replies, in the order of their arrival.
  Fifo<std::shared_ptr<IncomingCall>> delayed_;
  Loop::TimerId replies_timer_ = 0;
  std::uint64_t replies_read_ = 0;    // a number that grows if the peer reads or acknowledges replies
  std::int64_t replies_unread_ = 0;   // looks since it has grown
  std::shared_ptr<Session> session_;  // constant once ready
  // counted_: the number of resumable frames that the peer has accepted is known. stated_: the peer has
  // stated it over this link.
  bool counted_ = false, stated_ = false;
  // The number of the next resumable frame that will arrive over this link.
  std::uint64_t expected_ = 0;
  // The number that the peer expects for the next resumable frame that is sent.
  std::uint64_t announced_ = 0;
  struct {
    std::uint64_t frames = 0, bytes = 0;  // resumable frames that have arrived
  } unacknowledged_;
  Loop::TimerId acknowledge_timer_ = 0;
  Loop::TimerId heartbeat_ = 0;
  std::uint64_t heard_ = 0;  // received bytes at the last beat
  std::int64_t silent_ = 0;  // beats since anything was received
  bool spoken_ = false;      // something was sent since the last beat
  Protocol protocol_;        // negotiated by the two hellos
  bool ping_queued_ = false, pong_queued_ = false;
  Clock::time_point beat_due_;
};

}  // namespace weft::rpc
