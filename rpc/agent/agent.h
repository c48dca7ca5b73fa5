// Agent: one endpoint of the RPC layer. It owns its event loops, connections and served methods.
//
// A plain object: a process may have several agents. The constructor takes the options and the layers above
// RPC (dist_optim::layers() for training). When it returns, the agent listens. Serve methods before other
// agents can reach this agent: before Job::join() in a job, otherwise before passing on addresses(). The
// destructor fails calls in flight with shut_down and waits for running handlers; call drain() or leave()
// first for an orderly end. Do not destroy an agent on its own threads (in a handler, or in a `then` that a
// loop runs). If the agent runs on the program's io_context, destroy the agent on a thread that runs the
// io_context, or when no thread runs the io_context. Several threads may run the io_context: the agent's
// events run on one of them at a time, in turn. Thread-safety: all functions may be called from any thread,
// including serve() and allow_create().
#pragma once

#include <weft/rpc/core/blocking_executor.h>
#include <weft/rpc/core/slots.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/endpoint/peer.h>

#include <type_traits>

namespace weft::rpc {

class Agent;
class AgentCore;

// A layer above RPC: installs its hooks and methods into an agent under construction.
using Layer = std::function<void(Agent&)>;
using Layers = std::vector<Layer>;

class WEFT_EXPORT Agent {
 public:
  explicit Agent(const AgentOptions& options, const Layers& layers = {});  // with its own loops
  // Never called: the compiler chooses it for MemberOptions, whose rendezvous an agent would ignore.
  template <class Options>
  explicit Agent(const Options&,
                 std::enable_if_t<!std::is_same_v<Options, AgentOptions> &&
                                      std::is_convertible_v<const Options*, const AgentOptions*>,
                                  const Layers&> = {}) {
    static_assert(detail::never<Options>,
                  "weft: an Agent of MemberOptions would have no job: construct a Job (rpc/job/job.h)");
  }
  Agent(asio::io_context& context, const AgentOptions& options,
        const Layers& layers = {});                                         // on the program's loop
  Agent(Runtime runtime, AgentOptions options, const Layers& layers = {});  // on given loops
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // The name and the incarnation stay the same. addresses(): the addresses on which the agent listens, with
  // their actual ports; empty if the agent only connects, and after shut_down().
  const AgentId& id() const;
  const std::string& name() const;
  std::vector<std::string> addresses() const;

  // Serving. Several handler threads may call a served object at the same time. Calls of an object behind an
  // RRef run one after another.
  template <Served T>
  void serve(std::shared_ptr<T> object) {
    detail::serve_object(methods(), object);
  }
  template <NamedFunction F>
  void serve() {
    methods().serve(detail::method_entry<F>(""));
  }
  // Permits peers to create objects of type T on this agent, and to keep RRefs to these objects.
  template <Served T>
  void allow_create() {
    detail::serve_object<T>(methods(), nullptr);
    methods().serve(detail::constructor_entry<T>());
  }

  // Limits the number of calls of a method that run here at the same time, and the number that wait. Further
  // calls fail with resource_exhausted and Execution::not_sent.
  void limit(const std::string& method, MethodLimit limit);

  // A peer by name or by address. connect() is the same, for addresses.
  Peer peer(const std::string& name_or_address);
  Peer connect(const std::string& address) { return peer(address); }

  // Ends in order: the layers leave, then the agent leaves its job if it has one, and drains.
  Future<void> leave();

  // Runs a task on the calling thread until it completes.
  template <class T>
  T run(Task<T> task) {
    BlockingExecutor here;
    return here.run(std::move(task));
  }

  // Accepts no new calls; completes when no call is in flight. deadline_exceeded: calls were still in flight
  // after `timeout`.
  Future<void> drain(std::chrono::nanoseconds timeout);
  // Fails calls in flight with shut_down, and blocks until running handlers have returned (see Runtime for
  // agents that do not own their handler threads). The destructor calls it. Throws failed_precondition on a
  // thread of the agent.
  void shut_down();

  // Changes AgentOptions::call_timeout, for later calls that set no timeout. limit: no_timeout removes the
  // default.
  void set_call_timeout(std::chrono::nanoseconds limit);

  // Counters since the agent was created, and the calls in flight now. The counters are read one after
  // another: a call that begins or completes meanwhile may be included in some of them only.
  AgentCounts counts() const;
  // For layers. methods(): the served methods. attached(): objects that the agent keeps until it is
  // destroyed; layers put them while the agent is created.
  const std::shared_ptr<AgentCore>& core() const { return core_; }
  MethodTable& methods();
  Slots& attached() { return attached_; }

 private:
  Agent(std::shared_ptr<AgentCore> core, const Layers& layers);
  std::shared_ptr<AgentCore> core_;
  Slots attached_;
};

// The description of a method, as `weft.methods` returns it.
struct MethodInfo {
  std::string name, signature;
  std::vector<std::string> parameters;
  std::string result;
  bool idempotent = false;
  bool on_object = false;
};
WEFT_CODEC(MethodInfo, name, signature, parameters, result, idempotent, on_object)

// The methods that the peer serves, by name, including those of weft. The call runs on a handler thread of
// the peer, so it waits while all handler threads are busy. AgentOptions::call_timeout does not apply to it.
WEFT_EXPORT Future<std::vector<MethodInfo>> list_methods(const Peer& peer);

// The method that health() calls, and the values of Health::status.
inline constexpr std::string_view health_method = "weft.health";
inline constexpr std::string_view health_serving = "serving", health_draining = "draining";

// The state of an agent, for health checks. The method `weft.health` returns it.
//
// A loop serves the method, so the agent replies even while every handler thread is busy. A draining agent
// refuses new calls with `shut_down`, including calls of `weft.health`. Only a call of `weft.health` that
// arrived before the drain began returns "draining".
struct Health {
  std::string status;  // health_serving or health_draining
  std::string name;    // of the agent
  std::uint64_t incarnation = 0;
  std::string version;            // of weft, "0.1.0"
  double uptime = 0;              // seconds since the agent was created
  std::int64_t calls_served = 0;  // calls of peers in flight, except this one
  std::int64_t calls_made = 0;    // calls of the agent in flight
};
WEFT_CODEC(Health, status, name, incarnation, version, uptime, calls_served, calls_made)

// The health of a peer. Fails with not_found if the peer has an older release of weft.
WEFT_EXPORT Future<Health> health(const Peer& peer);

}  // namespace weft::rpc
