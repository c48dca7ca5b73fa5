// Link: one connection between this agent and a peer, from the handshake to its end.
//
// Both sides send a Hello at once. When the Hello of the peer has arrived, the link is added to the session
// with the peer (session.h), which uses one link at a time: the link gives it the frames of calls. The link
// itself sends heartbeats, and notices a peer that is silent. A link belongs to its connection's loop;
// functions are called there unless stated otherwise. Owned by LinkTable, by its session, and by its
// connection while that is open.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/wire/protocol.h>

#include <atomic>
#include <deque>
#include <utility>

namespace weft::rpc {

class AgentCore;
class Route;
class Session;

// The silence of a link's peer, and the heartbeats that this side has queued.
//
// Silence is counted in beats and not in time, so that a period in which this process was stopped counts as
// one beat. One silent beat proves nothing: the other side may send nothing between two beats of this side.
// While a ping or a pong is queued, no second one is queued, so the queue does not grow if a peer sends pings
// and reads nothing.
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

class WEFT_EXPORT Link final : public ConnectionObserver, public std::enable_shared_from_this<Link> {
 public:
  // route, whole, lane_key: as of AgentCore::adopt().
  Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
       std::shared_ptr<Route> route, std::shared_ptr<Link> whole, std::uint64_t lane_key);

  // Called once: sends the hello and begins to receive. The link closes if the handshake does not succeed
  // within AgentOptions::handshake_timeout, or if no session uses it by then. If the agent is draining, an
  // accepted link ends with its peer's Hello, unless the agent has a session with the peer.
  void open();

  // Any thread. number(): unique among the agent's links, ascending.
  std::uint64_t number() const { return number_; }
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  bool is_dialled() const { return is_dialled_; }  // by this agent
  bool ready() const {                             // the handshake has succeeded, and the link has not ended
    const State now = state_;
    return now == State::spare || now == State::in_use || now == State::retired;
  }
  // Any thread, once it was ready.
  const AgentId& peer() const { return peer_; }
  const Protocol& protocol() const { return protocol_; }  // the negotiated protocol
  const std::shared_ptr<const Caller>& caller() const { return caller_; }
  // Its session has used or left it, and does not choose it again.
  bool was_used() const { return was_used_; }

  std::optional<HostPair> hosts() const { return connection_->hosts(); }  // of a link that has not ended

  // --- For its session ---
  void use();      // frames of calls go to the session from here on
  void decided();  // the session has taken note of a `resume` of the peer. Any thread.
  void retire();   // no more: those that arrive are dropped
  void send(OutboundFrame&& frame);
  void send_soon(OutboundFrame&& frame);          // any thread
  void close_soon(const Error& reason);           // any thread
  void join_new_session(const ResumeInfo& info);  // its session has ended, and the peer has not. Any thread.

  void send_goodbye();              // asks the peer to send no new requests
  void close(const Error& reason);  // at once: drops queued frames
  // These send queued frames, and close. expel(): with peer_lost; sends the reason to the peer.
  // end_incarnation(): informs the peer that this agent has ended.
  void expel(const Error& reason);
  void end_incarnation(const Error& reason);

  void on_frame(InboundFrame&& frame) override;
  bool awaits(const Prefix& reply) override;
  void on_closed(const Error& reason) override { end(reason, true); }

 private:
  // The table of transitions is in link.cc.
  enum class State : std::uint8_t {
    reserved,   // as handshake, but this side has not sent its Hello
    handshake,  // the peer's Hello is awaited
    lane,       // it becomes a lane of another link as soon as its own hello was sent
    spare,      // ready, and not used by the session: frames of calls are errors
    in_use,
    retired,  // the session uses another link: frames of calls are dropped
    ended,
  };

  void on_first_frame(IncomingMessage& message);
  void on_hello(IncomingMessage& message);
  void on_goodbye(const std::optional<Error>& reason);
  void send_hello();
  bool join_session();                    // false: the peer was refused
  void refuse_peer(const Error& reason);  // sends the reason to the peer, and closes
  bool check_user(const std::string& name, const std::string& identity);  // false: not admitted
  void limit_unused_time();
  // --- Lanes: link_lanes.cc ---
  std::uint16_t max_lanes_here() const;
  void offer_lanes();
  void on_lane_step(std::uint64_t step);
  void become_lane();
  void use_lanes();  // if all are there
  void stripe_writes();
  bool takes(const Prefix& frame) const;  // false: the frame is dropped
  void deliver(InboundFrame&& frame);
  void beat();
  void await_beat();
  void send_beat(FrameKind kind, std::uint64_t id);
  // Sends queued frames, and closes. may_return: only the connection is lost; otherwise the end of the peer
  // is proven.
  void finish(const Error& reason, bool may_return = true);
  void end(const Error& reason, bool may_return);
  ErrorKind kind_of_end(const Error& reason, bool may_return) const;
  void log_end(const Error& reason, bool was_ready) const;

  const std::shared_ptr<AgentCore> core_;
  const std::uint64_t number_;
  const std::shared_ptr<Loop> loop_;
  std::shared_ptr<Connection> connection_;  // null once the connection has ended
  const std::shared_ptr<Route> route_;
  const bool is_dialled_;
  std::atomic<State> state_{State::handshake};  // written on the loop
  std::atomic<bool> was_used_{false};
  bool hello_left_ = false;  // this side's Hello was sent
  AgentId peer_;
  HelloInfo hello_;  // of the peer
  std::string identity_;
  Protocol protocol_;  // negotiated by the two hellos
  std::shared_ptr<const Caller> caller_;
  std::shared_ptr<Session> session_;  // null until ready
  // nullopt: a `resume` that the session has not seen yet. The frames that have followed it.
  std::deque<std::optional<InboundFrame>> early_;
  Loop::TimerId unused_timer_ = 0, heartbeat_ = 0;
  std::shared_ptr<Link> whole_;                     // the link of which this one is a lane
  std::atomic<std::uint64_t> lane_key_;             // of a lane, or that was offered for the lanes; 0: none
  std::vector<std::unique_ptr<ByteStream>> lanes_;  // until there are all of them
  std::size_t missing_lanes_ = 0;
  bool peer_has_lanes_ = false;
  StripedStream* striped_ = nullptr;  // owned by the connection
  Heartbeats beats_;
  Clock::time_point beat_due_;
};

}  // namespace weft::rpc
