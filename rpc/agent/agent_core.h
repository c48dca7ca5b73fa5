// AgentCore: what an agent is made of, behind the Agent handle: loops, handler threads, transports, routes,
// methods, layers. Shared by everything that belongs to the agent, so that nothing dangles; ended once by
// shut_down().
//
// Thread-safety: every member may be called from any thread unless said otherwise.
#pragma once

#include <weft/rpc/agent/agent_counts.h>
#include <weft/rpc/agent/call_hook.h>
#include <weft/rpc/agent/method_gate.h>
#include <weft/rpc/agent/options.h>
#include <weft/rpc/agent/pending_call.h>
#include <weft/rpc/agent/route.h>
#include <weft/rpc/agent/runtime.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/slots.h>

#include <deque>
#include <initializer_list>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>

namespace weft::rpc {

class Admission;
class InProcess;
class Interceptor;
class Session;
class Sessions;

class WEFT_EXPORT AgentCore final : public std::enable_shared_from_this<AgentCore> {
 public:
  using FindAddresses =
      std::function<void(const std::string& name, UniqueFunction<void(std::vector<Address>)>)>;
  using MakeContext = std::function<std::unique_ptr<ContextSwitch>(IncomingCall&)>;
  // The text of an exception for others, where its what() is not fit for them; none: it is.
  using ExplainFailure = std::function<std::optional<std::string>(const std::exception_ptr&)>;

  AgentCore(AgentOptions options, asio::io_context* context);  // null: on loops of its own
  AgentCore(AgentOptions options, Runtime runtime);
  ~AgentCore();

  const AgentId& id() const { return id_; }
  const AgentOptions& options() const { return options_; }
  const std::shared_ptr<const RetryPolicy>& default_retry() const { return default_retry_; }  // null: none
  std::chrono::nanoseconds default_timeout() const {
    return std::chrono::nanoseconds(default_timeout_.load());
  }
  void set_default_timeout(std::chrono::nanoseconds limit) { default_timeout_ = limit.count(); }
  Executor& handlers() { return *handlers_; }
  std::shared_ptr<Loop> pick_loop();
  const std::vector<std::shared_ptr<Loop>>& loops() const { return loops_; }
  // expected_agent: whose certificate a peer that is dialled must have; empty: the host's.
  ConnectionOptions connection_options(std::string expected_agent = {}) const;
  AgentCounters& counters() { return counters_; }
  AgentCounts counts() const;
  LayerFigures layer_figures() const;
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

  // Methods and layers. Layers are added before listen().
  void serve(MethodEntry entry);  // already_exists where the name is taken
  std::shared_ptr<const MethodEntry> find_method(std::uint64_t id) const;
  std::vector<std::shared_ptr<const MethodEntry>> methods() const;
  void limit_method(const std::string& name, MethodLimit limit);  // served already, or later
  void add_hook(std::shared_ptr<CallHook> hook);
  void add_interceptor(std::shared_ptr<Interceptor> interceptor) {  // before listen(), after the options'
    interceptors_.push_back(std::move(interceptor));
  }
  const std::vector<std::shared_ptr<Interceptor>>& interceptors() const { return interceptors_; }
  void add_context(MakeContext make) { contexts_.push_back(std::move(make)); }
  void add_explanation(ExplainFailure explain) { explanations_.push_back(std::move(explain)); }
  Slots& layers() { return layers_; }

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

  // Calls.
  std::uint64_t next_call_id() { return next_call_++; }
  // When a call begins: to the nanosecond where somebody looks on, else as old as it takes for ages.
  Clock::time_point call_time(const Loop& loop) const {
    return interceptors_.empty() ? loop.coarse_now() : loop.now();
  }
  // false: more than the limits allow, so it is to fail
  bool outgoing_began(OutgoingSize size, bool background = false);
  void outgoing_ended(OutgoingSize size, bool background = false);
  // Counts a call between two attempts, and the bytes that it keeps, for as long as the result lives.
  std::shared_ptr<void> retry_waits(OutgoingSize size);
  void prepare(std::shared_ptr<IncomingCall> call);  // asks the hooks, then runs
  void replied(IncomingMessage& message, const AgentId& from);
  void hand_on(CallContext& parent, OutgoingCall& child);  // before child.begin()
  void make_contexts(IncomingCall& call);
  std::string text_of(const std::exception_ptr& failure) const;  // for others, on another agent say
  // A request that came in, until its IncomingCall has gone; false: beyond a limit for all of them. admitted:
  // its connection has found room for it.
  bool hold(std::uint64_t bytes, bool upkeep, bool admitted);
  void let_go(std::uint64_t bytes, bool upkeep);
  // What the ids of calls are mixed with in tables: no peer knows it.
  std::uint64_t id_seed() const { return id_seed_; }
  void call_began(bool background) { ++(background ? active_.background : active_.work); }
  void call_ended(bool background);
  std::int64_t calls_served() const { return active_.all(); }  // under way
  std::int64_t calls_made() const { return outgoing_.all(); }  // likewise
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

  // Ends.
  bool draining() const { return draining_; }
  bool ended() const { return ended_; }
  Future<void> leaving();  // the layers' part
  Future<void> drain(std::chrono::nanoseconds timeout);
  void shut_down();
  // All members of its job of fixed size have come: what the layers say to that.
  Result<void> world_complete(const std::vector<std::string>& members) const;
  // The job this agent is part of has failed with this, which calls that their peer's end fails report from
  // now on. Other calls go on until fail_world().
  void blame(const Error& error);
  // All outstanding and later calls fail with this, or with what blame() said before.
  void fail_world(const Error& error);
  std::optional<Error> world_failure() const;  // as blame() or fail_world() said
  std::optional<Error> cause_of_ends() const;  // what calls fail with when their peers end; none: that end
  bool world_ended() const { return world_ended_; }  // fail_world() was called
  // The peer ends, and says goodbye with the failure of its job. On its link's loop.
  void peer_world_failed(const AgentId& peer, const Error& error);

 private:
  struct Draining {
    explicit Draining(std::shared_ptr<Loop> l) : loop(std::move(l)), promise(loop) {}
    std::shared_ptr<Loop> loop;
    Promise<void> promise;
    Loop::TimerId timer = 0;  // on the loop
  };
  struct UnderWay {
    std::atomic<std::int64_t> work{0}, background{0};
    std::int64_t all() const { return work + background; }
  };
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
  void check_drained();
  void end_drain(Result<void> result);

  const AgentOptions options_;
  const AgentId id_;
  const std::uint64_t id_seed_;
  const std::shared_ptr<const RetryPolicy> default_retry_;
  std::atomic<std::chrono::nanoseconds::rep> default_timeout_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  const Clock::time_point made_;
  std::atomic<std::size_t> next_loop_{0};
  const std::shared_ptr<Executor> handlers_;
  const std::shared_ptr<HandlerPool> own_handlers_;  // the same, where they are the agent's own
  const std::shared_ptr<MemoryPool> memory_;         // of arriving attachments
  std::map<std::string, std::shared_ptr<Transport>> transports_;
  AgentCounters counters_;
  std::atomic<std::size_t> early_lanes_{0};
  std::atomic<std::uint64_t> next_call_{1};
  UnderWay active_;                                // incoming calls that are not over
  UnderWay outgoing_;                              // outgoing calls that are not over
  std::atomic<std::int64_t> retrying_{0};          // that wait for their next attempt
  std::atomic<std::uint64_t> outgoing_bytes_{0};   // of their attachments
  std::atomic<std::uint64_t> outgoing_values_{0};  // bytes of what else is in the larger ones
  std::atomic<std::uint64_t> held_calls_{0};       // that came in, without upkeep
  const std::shared_ptr<Admission> admission_;     // of the bytes of requests that come in
  const std::shared_ptr<Sessions> sessions_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> world_failed_{false};  // world_failure_ is set
  std::atomic<bool> world_ended_{false};

  std::vector<std::shared_ptr<CallHook>> hooks_;            // fixed before listen()
  std::vector<MakeContext> contexts_;                       // likewise
  std::vector<ExplainFailure> explanations_;                // likewise
  std::vector<std::shared_ptr<Interceptor>> interceptors_;  // likewise, to the end
  Slots layers_;                                            // likewise

  mutable std::shared_mutex methods_mutex_;  // guards these three
  std::unordered_map<std::uint64_t, std::shared_ptr<MethodEntry>> methods_;
  std::vector<std::shared_ptr<MethodEntry>> replaced_;        // by limit_method; calls may still use them
  std::map<std::string, std::shared_ptr<MethodGate>> gates_;  // by the method's name

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
  std::optional<Error> world_failure_;
  std::shared_ptr<Draining> drained_;

  struct LogWindow {
    Clock::time_point ends;
    std::size_t logged = 0, left_out = 0;
  };
  std::mutex log_mutex_;  // guards log_windows_
  std::map<std::string_view, LogWindow> log_windows_;

  std::atomic<Clock::rep> last_late_beat_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace weft::rpc
