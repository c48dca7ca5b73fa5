// AgentCore: what an agent is made of, behind the Agent handle: loops, handler threads, transports, routes,
// methods, layers. Shared by everything that belongs to the agent, so that nothing dangles; ended once by
// shut_down().
//
// Thread-safety: every member may be called from any thread unless said otherwise.
#pragma once

#include <weft/rpc/agent/call_host.h>
#include <weft/rpc/agent/options.h>
#include <weft/rpc/agent/pending_call.h>
#include <weft/rpc/agent/route.h>
#include <weft/rpc/agent/runtime.h>
#include <weft/rpc/core/handler_pool.h>

#include <deque>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>

namespace weft::rpc {

class InProcess;
class Session;
class Sessions;

class WEFT_EXPORT AgentCore final : public CallHost, public std::enable_shared_from_this<AgentCore> {
 public:
  using FindAddresses =
      std::function<void(const std::string& name, UniqueFunction<void(std::vector<Address>)>)>;

  AgentCore(AgentOptions options, asio::io_context* context);  // null: on loops of its own
  AgentCore(AgentOptions options, Runtime runtime);
  ~AgentCore();

  const AgentOptions& options() const { return options_; }
  std::shared_ptr<Loop> pick_loop();
  const std::vector<std::shared_ptr<Loop>>& loops() const { return loops_; }
  // expected_agent: whose certificate a peer that is dialled must have; empty: the host's.
  ConnectionOptions connection_options(std::string expected_agent = {}) const;
  AgentCounts counts() const;
  std::chrono::duration<double> uptime() const { return loops_.front()->now() - made_; }  // any thread
  // Fields without a value are left out.
  // Control characters of the message, which may be a peer's, are escaped.
  void log(LogLevel level, const std::string& message, std::initializer_list<LogField> fields = {}) const;
  // A warning that peers can cause as often as they like: ten of a topic are logged in ten seconds, then one
  // line on the loop says how many more there were. topic: a literal, as "connections refused".
  void log_some(const char* topic, const std::shared_ptr<Loop>& loop, const std::string& message,
                std::initializer_list<LogField> fields = {});
  // A beat came so much too late, since its loop was kept busy. Logged once for all connections.
  void beat_was_late(Clock::time_point now, std::chrono::nanoseconds by);

  // Ways to peers.
  void listen();
  std::vector<std::string> addresses() const;
  std::vector<std::string> addresses_of(const std::string& name) const;  // as the peer's last handshake said
  std::shared_ptr<Route> route(const std::string& name, std::vector<std::string> addresses = {});
  std::shared_ptr<Route> route_to(const std::string& address);
  Transport* transport(const std::string& scheme) const;
  void set_directory(FindAddresses find);
  void find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done);
  std::vector<std::shared_ptr<Route>> all_routes() const;
  std::vector<std::shared_ptr<Link>> all_links() const;  // in the order of their making
  bool linked_to(const AgentId& peer) const;
  // Connected, or absent: it may return (Sessions).
  bool expects(const AgentId& peer) const;
  bool is_gone(const AgentId& peer) const;  // it was expected, and will not return
  // By which resumable messages to it outlive connections. null: none.
  std::shared_ptr<Session> session_with(const AgentId& peer) const;
  std::vector<std::shared_ptr<Session>> all_sessions() const;
  const ProcessId& process() const;
  bool is_on_this_host(const std::string& name) const;  // some absent incarnation of that name
  std::vector<std::shared_ptr<Link>> links_to(const AgentId& peer) const;  // ready ones, the oldest first
  // Lanes that are here before the hello of their connection: as many at a time as connections without one.
  bool keep_early_lane();  // false: there are too many
  void early_lanes_gone(std::size_t count) { early_lanes_ -= count; }
  std::shared_ptr<Link> link_with(
      const LaneKey& key) const;  // the link whose lanes have this key; null: none

  // A secret that is mixed into the ids of calls in hash tables.
  std::uint64_t id_seed() const { return id_seed_; }
  // What quiesce() goes by: calls under way, and requests over the connections that there are with peers of
  // these names, all without background methods. `ever` grows with every request, whoever the peer is.
  struct Work {
    std::int64_t served = 0, made = 0;
    std::uint64_t sent = 0, received = 0, ever = 0;
  };
  Work work_with(const std::set<std::string>& names) const;

  // Links; on their loops. A handshake is over when it has succeeded or its link has ended, whatever is
  // first.
  void handshake_over(const std::shared_ptr<Link>& link);
  void adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route);
  void link_ready(const std::shared_ptr<Link>& link, std::shared_ptr<Route> route, const HelloInfo& hello);
  // may_return: nothing says that the peer has ended too.
  void link_ended(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& route, const Error& reason,
                  bool may_return = false);
  // This incarnation is gone: its session ends, and the layers learn it. Any thread.
  void lose(const AgentId& peer, const Error& reason);
  // Nobody listens where that name was: its absent incarnations are gone. Any thread.
  void refused_by(const std::string& name, const Error& reason);
  void peer_leaving(const AgentId& peer);
  // This incarnation of a peer has ended, even if its process still runs: its connections end, with
  // peer_lost, none is made with it any more (lease_lost, to either side), and its name leads to where the
  // next incarnation says it is. Any thread.
  void forget(const AgentId& peer, const std::string& reason);
  // It has left: its name leads nowhere until the next incarnation is known; calls in flight continue.
  void forget_way(const AgentId& peer);
  std::optional<Error> forgotten(const AgentId& peer) const;

  Future<void> drain(std::chrono::nanoseconds timeout);
  void shut_down();
  // All outstanding and later calls fail with this, or with what blame() said before.
  void fail_world(const Error& error);
  // The peer ends, and says goodbye with the failure of its job. On its link's loop.
  void peer_world_failed(const AgentId& peer, const Error& error);

 private:
  struct ByNumber {  // not by address: what is done to all links is done in an order that a simulation
                     // repeats
    bool operator()(const std::shared_ptr<Link>& a, const std::shared_ptr<Link>& b) const;
  };
  static constexpr const char* self_scheme = "self";  // of the address where an agent calls itself

  bool is_linked(const std::string& name) const;  // with an incarnation of that name; with mutex_
  void report_gone(const Link& link, bool last, const Error& reason);
  void end_session(const std::shared_ptr<Session>& session, const Error& reason);
  bool is_forgotten(const std::string& name, const std::shared_ptr<Route>& route) const;  // with mutex_
  void forget_visitor(const std::string& name);                                           // likewise
  void forget_visitors();                                                                 // likewise

  const AgentOptions options_;
  const std::uint64_t id_seed_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  const Clock::time_point made_;
  std::atomic<std::size_t> next_loop_{0};
  const std::shared_ptr<HandlerPool> own_handlers_;  // handlers(), if they are the agent's own
  const std::shared_ptr<MemoryPool> memory_;         // of arriving attachments
  std::map<std::string, std::shared_ptr<Transport>> transports_;
  std::atomic<std::size_t> early_lanes_{0};
  const std::shared_ptr<Sessions> sessions_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::unique_ptr<Listener>> companions_;  // in shared memory, beside those
  std::map<std::string, std::shared_ptr<Route>> routes_;
  std::size_t forget_at_ = 64;  // the number of routes at which forget_visitors() looks
  std::uint64_t last_link_ = 0;
  std::set<std::shared_ptr<Link>, ByNumber> links_;
  std::set<std::shared_ptr<Link>, ByNumber> handshaking_;  // that came in and have not said who they are
  std::map<AgentId, int> links_of_;
  std::uint64_t requests_of_ended_links_ = 0;  // sent and received
  std::map<std::string, std::vector<std::string>> peer_addresses_;
  std::deque<std::pair<AgentId, Error>> forgotten_;  // the latest
  FindAddresses directory_;

  struct LogWindow {
    Clock::time_point ends;
    std::size_t logged = 0, left_out = 0;
  };
  std::mutex log_mutex_;  // guards log_windows_
  std::map<std::string_view, LogWindow> log_windows_;

  std::atomic<Clock::rep> last_late_beat_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace weft::rpc
