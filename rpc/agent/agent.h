// Agent: one endpoint of the RPC layer. It owns its event loops, connections and served methods.
//
// A plain object: several live in one process. Made with its options and the layers above RPC that it takes
// part in (dist_optim::layers() for training); it listens from then on. Methods are served before peers are
// told of the agent: before Job::join() in a job, before handing out addresses() otherwise. The destructor
// ends what is under way with shut_down and waits for running handlers; drain() or leave() first end it
// orderly. It is not destroyed on its own threads (in a handler, or in a `then` that a loop runs); an agent
// on the program's io_context is destroyed on the thread that runs that, or when nobody does. Thread-safety:
// every member may be called from any thread, serve() and allow_create() too.
#pragma once

#include <weft/rpc/rendezvous/membership.h>
#include <weft/rpc/endpoint/options.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/core/blocking_executor.h>

namespace weft::rpc {

class Agent;
class Membership;

// A layer above RPC: installs its hooks and methods into an agent that is being made.
using Layer = std::function<void(Agent&)>;
using Layers = std::vector<Layer>;

class WEFT_EXPORT Agent {
 public:
  explicit Agent(AgentOptions options, Layers layers = {});                    // on loops of its own
  Agent(asio::io_context& context, AgentOptions options, Layers layers = {});  // on the program's
  Agent(Runtime runtime, AgentOptions options, Layers layers = {});            // on what it is given
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const AgentId& id() const { return core_->id(); }
  const std::string& name() const { return core_->id().name; }
  std::vector<std::string> addresses() const { return core_->addresses(); }

  // Serving. A served object is called from several handler threads at once; objects behind RRefs take turns.
  template <Served T>
  void serve(std::shared_ptr<T> object) {
    detail::serve_object(core_->methods(), object);
  }
  template <NamedFunction F>
  void serve() {
    core_->methods().serve(detail::method_entry<F>(""));
  }
  // Peers may create a T here and hold it by RRefs.
  template <Served T>
  void allow_create() {
    detail::serve_object<T>(core_->methods(), nullptr);
    core_->methods().serve(detail::constructor_entry<T>());
  }

  // How many calls of a method run at a time here, and how many wait; beyond, they are refused with
  // resource_exhausted and not_sent.
  void limit(const std::string& method, MethodLimit limit) { core_->methods().limit(method, limit); }

  // Peers by name, or by address; connect() is peer() under the name that reads well with an address.
  Peer peer(const std::string& name_or_address);
  Peer connect(const std::string& address) { return peer(address); }
  // The member of a job of fixed size that has this rank, once Job::wait_for() has seen it join. Throws
  // not_found where none has it or none is known yet, failed_precondition where the world is not fixed.
  Peer peer(std::size_t rank);

  // The agent's membership of a job, if the options have a rendezvous. Programs hold it as a Job
  // (rpc/membership/job.h). Without a rendezvous: failed_precondition, except for leave().
  Future<void> leave();  // tells the layers and the job, then drains
  // Once it has joined: who is here, as last seen, and what becomes of them.
  std::vector<Member> members() const;
  std::unique_ptr<MemberWatch> watch_members();

  // Lends the calling thread to a task until it ends.
  template <class T>
  T run(Task<T> task) {
    BlockingExecutor here;
    return here.run(std::move(task));
  }

  // No new calls are accepted; completes when those under way have ended. deadline_exceeded: some had not.
  Future<void> drain(std::chrono::nanoseconds timeout);
  void shut_down();

  // Of calls made from now on that give none themselves: AgentOptions::call_timeout. no_timeout: none.
  void set_call_timeout(std::chrono::nanoseconds limit);

  AgentCounts counts() const { return core_->counts(); }
  // For layers, and for Job (rpc/membership/job.h). membership(): failed_precondition without a rendezvous.
  const std::shared_ptr<AgentCore>& core() const { return core_; }
  operator const std::shared_ptr<AgentCore>&() const { return core_; }  // a PeerSet takes it
  Membership& membership() const;

 private:
  Agent(std::shared_ptr<AgentCore> core, Layers layers);
  std::shared_ptr<AgentCore> core_;
  std::shared_ptr<Membership> membership_;
};

// What a method is, as agents list them: peers call `weft.methods`.
struct MethodInfo {
  std::string name, signature;
  std::vector<std::string> parameters;
  std::string result;
  bool idempotent = false;
  bool on_object = false;
};
WEFT_CODEC(MethodInfo, name, signature, parameters, result, idempotent, on_object)

WEFT_EXPORT Future<std::vector<MethodInfo>> list_methods(const Peer& peer);

}  // namespace weft::rpc
