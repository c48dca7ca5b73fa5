// AgentCore: the implementation of an agent, with its loops, transports, connections and routes to peers.
// Layers use it; programs use Agent.
//
// AgentCore applies each change of connections and peers to the tables of the agent (LinkTable, RouteTable,
// Sessions, and the tables of CallHost), and tells the layers. The objects of the agent share
// ownership of AgentCore. shut_down() ends the agent; later calls of its functions have no effect.
// Thread-safety: all functions may be called from any thread, unless stated otherwise.
#pragma once

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_log.h>
#include <weft/rpc/endpoint/link_table.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/endpoint/route_table.h>
#include <weft/rpc/transport/transport.h>

#include <map>

namespace weft::rpc {

class HandlerPool;
class Session;
class Sessions;

class WEFT_EXPORT AgentCore final : public CallHost, public std::enable_shared_from_this<AgentCore> {
 public:
  // context: the program's io_context, which runs the agent; null: the agent creates its own loops.
  AgentCore(const AgentOptions& options, asio::io_context* context);
  AgentCore(AgentOptions options, Runtime runtime);
  static std::shared_ptr<AgentCore> of(const CallContext& call);  // the agent that serves the call

  // options(): the given options with defaults filled in, so `log` is set, and `loops` and `handler_threads`
  // are above 0. loops(): at least one loop. Both are constant. pick_loop() returns the loops round-robin.
  // counts(): as Agent::counts().
  const AgentOptions& options() const { return options_; }
  const std::vector<std::shared_ptr<Loop>>& loops() const { return loops_; }
  std::shared_ptr<Loop> pick_loop() { return loops_[next_loop_++ % loops_.size()]; }
  AgentLog& log() const { return *log_; }
  AgentCounts counts() const;
  std::chrono::duration<double> uptime() const { return loops_.front()->now() - made_; }

  // The tables and the transports of the agent, which exist as long as the agent.
  LinkTable& links() { return links_; }
  RouteTable& routes() { return routes_; }
  Sessions& sessions() const { return *sessions_; }
  Transport* transport(const std::string& scheme) const;  // null: the agent has no such transport
  // expected_agent: the name that the peer's certificate must have. Empty: the host's name.
  ConnectionOptions connection_options(std::string expected_agent = {}) const;

  // AgentOptions::same_user. be_of_one_user(): makes it true for an agent whose options do not state it; call
  // it before listen().
  bool same_user() const {
    return options_.credentials == nullptr && options_.same_user.value_or(is_of_one_user_);
  }
  void be_of_one_user() { is_of_one_user_ = true; }

  void listen();  // call it after all layers, interceptors and methods were added
  // As Agent::addresses().
  std::vector<std::string> addresses() const;
  // The addresses that this agent states to the peer at the other end of a connection between these hosts. A
  // wildcard is stated as the connection's own address, or not at all.
  std::vector<std::string> stated_addresses(const std::optional<HostPair>& hosts) const;

  // Takes over a new connection. route: the route that dialled; null: the connection was accepted, or is the
  // lane with this key of `whole`.
  void adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route,
             std::shared_ptr<Link> whole = nullptr, std::uint64_t lane_key = 0);
  // Called on the link's loop when its handshake has succeeded.
  void link_ready(const std::shared_ptr<Link>& link, const std::shared_ptr<Session>& session,
                  const std::shared_ptr<Route>& dialled, const HelloInfo& hello);
  // Called on the session's loop: it has no connection, and is kept (false: it is not); its peer is gone.
  bool session_absent(const Session& session, const std::shared_ptr<Loop>& loop, const Error& reason);
  void session_lost(const std::shared_ptr<Session>& session, const Error& reason);
  // Any thread: ends a session that Sessions has closed. is_gone: no other session with its peer exists.
  void end_session(const std::shared_ptr<Session>& session, const Error& reason, bool is_gone);

  // This incarnation of a peer is gone: its session ends, and the layers are notified.
  void lose(const AgentId& peer, const Error& reason);
  // The job has declared this incarnation dead; the process may still run. Its connections end with
  // peer_lost, and new connections from it are refused with lease_lost. Calls to its name then reach the next
  // incarnation.
  void forget(const AgentId& peer, const std::string& reason);

  // As Agent::drain().
  Future<void> drain(std::chrono::nanoseconds timeout);
  // As Agent::shut_down(). No effect after the first call.
  void shut_down();
  // All calls in flight and all later calls fail with this error. If CallHost::set_job_error() has already
  // recorded an error, they fail with that error instead.
  void fail_job(const Error& reason);

 private:
  void end_all();  // the part of shut_down() that runs once
  std::unique_ptr<Listener> listen_at(const Address& address);

  const AgentOptions options_;
  const std::vector<std::shared_ptr<Loop>> loops_;
  const Clock::time_point made_;
  std::atomic<std::size_t> next_loop_{0};
  bool is_of_one_user_ = false;
  const std::shared_ptr<AgentLog> log_;
  const std::shared_ptr<HandlerPool> own_handlers_;  // handlers() if that is a HandlerPool, otherwise null
  const std::shared_ptr<MemoryPool> memory_;         // for arriving attachments
  std::map<std::string, std::shared_ptr<Transport>> transports_;
  LinkTable links_;
  const std::shared_ptr<Sessions> sessions_;
  RouteTable routes_;

  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Listener>> listeners_ WEFT_GUARDED_BY(mutex_);
  // The listeners in shared memory for peers on this host, in addition to listeners_.
  std::vector<std::unique_ptr<Listener>> companions_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
