// Link: one connection between this agent and a peer, from the handshake to its end.
//
// Both sides send a Hello at once. When the Hello of the peer has arrived, the link is added to the session
// with the peer (session.h), which uses one link at a time: the link gives it the frames of calls. The link
// itself sends heartbeats, and notices a peer that is silent. A link belongs to its connection's loop;
// functions are called there unless stated otherwise. Owned by LinkTable, by its session, and by its
// connection while that is open.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/endpoint/heartbeats.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/wire/protocol.h>

#include <atomic>
#include <deque>
#include <variant>

namespace weft::rpc {

class AgentCore;
class Route;
class Session;

class WEFT_EXPORT Link final : public ConnectionObserver, public std::enable_shared_from_this<Link> {
 public:
  // route, whole, lane_key: as of AgentCore::adopt().
  Link(std::shared_ptr<AgentCore> core, std::uint64_t number, std::shared_ptr<Connection> connection,
       std::shared_ptr<Route> route, std::shared_ptr<Link> whole, std::uint64_t lane_key);
  ~Link() override;

  // Called once: sends the hello and begins to receive. The link closes if the handshake does not succeed
  // within AgentOptions::handshake_timeout, or if no session uses it by then. If the agent is draining, an
  // accepted link ends at once.
  void open();

  // Any thread. number(): unique among the agent's links, ascending.
  std::uint64_t number() const { return number_; }
  const std::shared_ptr<Loop>& loop() const { return loop_; }
  bool is_dialled() const { return is_dialled_; }  // by this agent
  bool ready() const { return is_ready_; }         // the peer's Hello has arrived
  // Any thread, once ready.
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

  void say_goodbye();                         // asks the peer to send no new requests
  void close(const Error& reason);            // at once: drops queued frames
  void finish(const Error& reason);           // sends queued frames, closes
  void expel(const Error& reason);            // like finish(), with peer_lost; sends the reason to the peer
  void end_incarnation(const Error& reason);  // like finish(); informs the peer that this agent has ended

  void on_frame(InboundFrame&& frame) override;
  bool awaits(const Prefix& reply) override;
  void on_skipped(const Prefix& message) override;
  void on_closed(const Error& reason) override;

 private:
  // The table of transitions is in link.cc.
  enum class State : std::uint8_t {
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
  // A `resume` that the session has not seen yet, and what has followed it; a prefix: the frame was skipped.
  struct Resumed {};
  using Early = std::variant<Resumed, InboundFrame, Prefix>;
  bool takes(const Prefix& frame) const;  // false: the frame is dropped
  void deliver(InboundFrame&& frame);
  void skip(const Prefix& message);
  void beat();
  void await_beat();
  void send_beat(FrameKind kind, std::uint64_t id);
  ErrorKind kind_of_end(const Error& reason) const;
  void log_end(const Error& reason) const;

  const std::shared_ptr<AgentCore> core_;
  const std::uint64_t number_;
  const std::shared_ptr<Loop> loop_;
  std::shared_ptr<Connection> connection_;  // null once the connection has ended
  const std::shared_ptr<Route> route_;
  const bool is_dialled_;
  State state_ = State::handshake;
  std::atomic<bool> is_ready_{false};
  std::atomic<bool> was_used_{false};
  bool hello_left_ = false;     // this side's Hello was sent
  bool end_is_proven_ = false;  // the peer itself is lost, not only the connection
  AgentId peer_;
  HelloInfo hello_;  // of the peer
  std::string identity_;
  Protocol protocol_;  // negotiated by the two hellos
  std::shared_ptr<const Caller> caller_;
  std::shared_ptr<Session> session_;  // null until ready
  std::deque<Early> early_;
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
