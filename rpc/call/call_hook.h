// CallHook: lets a layer above RPC take part in all calls of one agent. It is the extension point of the RPC
// layer, which does not depend on the layers above. LayerHooks: the hooks of the layers and the program's
// interceptors, for the calls of one agent.
//
// Installed with LayerHooks::add() while the agent is created, and owned by the agent. Thread-safety: each
// function of CallHook states its thread; see LayerHooks.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/core/future.h>

#include <functional>
#include <map>
#include <string>

namespace weft::rpc {

// Figures of layers by name: "LAYER.FIGURE", for example "rref.objects".
using LayerStats = std::map<std::string, std::uint64_t>;

class WEFT_EXPORT CallHook {
 public:
  virtual ~CallHook() = default;

  // Whether this layer reads the section. A call with a required section that no layer knows fails with
  // `unsupported`.
  virtual bool knows(std::string_view section) const = 0;

  // A request with sections has arrived. Called on the session's loop, before anything is decoded. The layer
  // calls `next` once, now or later and on any thread, or fails the call. Layers are called in the reverse
  // order of their installation: the highest first.
  virtual void incoming(std::shared_ptr<IncomingCall> call, Callback next) {
    (void)call;
    next();
  }
  // A reply with sections has arrived. Called on the session's loop, before the parts of the call (CallPart)
  // read it.
  virtual void replied(IncomingMessage& message, const AgentId& from) { (void)message, (void)from; }
  // A handler makes a call on behalf of the call that it serves (peer.with(call)).
  virtual void nested(CallContext& parent, OutgoingCall& child) { (void)parent, (void)child; }

  // Adds this layer's figures to its agent's stats (stats.h). Any thread; must not block.
  virtual void stats(LayerStats& to) const { (void)to; }

  // The peer is connected, for the first time or again. Called on the loop of the connection, before any call
  // over the connection is served.
  virtual void connection_made(const AgentId& peer) { (void)peer; }
  // This incarnation of a peer is gone. reason: shut_down if the peer has shut down, otherwise the failure.
  // Any thread; must not block.
  virtual void peer_gone(const AgentId& peer, const Error& reason) { (void)peer, (void)reason; }
  // The job has declared this incarnation of a peer dead, whether or not the agent was connected to it.
  // peer_gone() is called separately. Any thread; must not block.
  virtual void peer_forgotten(const AgentId& peer, const Error& reason) { (void)peer, (void)reason; }
  // All members of a fixed world have joined, including this one. If this function throws, the wait for the
  // members fails with that exception. Any thread; must not block.
  virtual void world_complete(const std::vector<std::string>& members) { (void)members; }
  // A fixed world has lost a member: no more calls are sent. Any thread; must not block.
  virtual void job_failed(const Error& error) { (void)error; }
  // A peer shuts down because its job has failed with this error. Called on the loop of its connection,
  // before peer_gone(); must not block.
  virtual void peer_job_failed(const AgentId& peer, const Error& error) { (void)peer, (void)error; }
  // The agent begins to drain. Any thread; must not block.
  virtual void draining() {}
  // Called before the agent announces its end to its peers, so that the layer can send its last messages to
  // them.
  virtual Future<void> leaving() { return Future<void>::made(Result<void>{}); }
  // Called after leaving() of every layer, before the agent drains: the layer ends what this agent is a
  // member of.
  virtual Future<void> left() { return Future<void>::made(Result<void>{}); }
  // The agent shuts down: the layer fails pending work and drops references to the agent.
  virtual void shut_down() {}
};

// The layers and interceptors are added before the agent listens and stay the same until clear(), so reading
// them needs no mutex. Thread-safety: add functions and clear() on one thread, while no call is in flight;
// the other functions may be called from any thread.
class WEFT_EXPORT LayerHooks {
 public:
  // Makes the context in which the handler of a call runs; null: none. Called on the call's executor, before
  // the handler. If it throws, the call fails with that exception.
  using MakeContext = std::function<std::unique_ptr<ContextSwitch>(IncomingCall&)>;
  // The text of an exception for peers. nullopt: its what() is used.
  using ExplainFailure = std::function<std::optional<std::string>(const std::exception_ptr&)>;
  using Interceptors = std::vector<std::shared_ptr<Interceptor>>;  // in the order in which they are called

  // interceptors: AgentOptions::interceptors.
  explicit LayerHooks(Interceptors interceptors) : interceptors_(std::move(interceptors)) {}

  // Call these before the agent listens. Contexts are entered in the order in which they were added, and left
  // in the reverse order. The first explanation that returns a text is used.
  void add(std::shared_ptr<CallHook> hook) { hooks_.push_back(std::move(hook)); }
  void add_interceptor(std::shared_ptr<Interceptor> interceptor) {  // called after AgentOptions::interceptors
    interceptors_.push_back(std::move(interceptor));
  }
  void add_context(MakeContext make) { contexts_.push_back(std::move(make)); }
  void add_explanation(ExplainFailure explain) { explanations_.push_back(std::move(explain)); }

  // In the order of their installation: the lowest layer first.
  const std::vector<std::shared_ptr<CallHook>>& all() const { return hooks_; }
  const Interceptors& interceptors() const { return interceptors_; }
  Slots& layers() { return layers_; }  // objects of layers that are attached to the agent
  const Slots& layers() const { return layers_; }

  // Calls incoming() of all hooks, then runs the call.
  void prepare(const std::shared_ptr<IncomingCall>& call) const;
  // Passes deadline and sections of a served call on to a call that its handler makes. Call it before
  // child.begin().
  void propagate(CallContext& parent, OutgoingCall& child) const;
  void make_contexts(IncomingCall& call) const;                  // adds the context of each MakeContext
  std::string text_of(const std::exception_ptr& failure) const;  // the text for peers
  LayerStats stats() const;                                      // the figures of all layers
  // Calls CallHook::leaving() of every layer, the highest first, because lower layers report to the peers
  // what higher layers have released.
  Future<void> leave(const std::shared_ptr<Loop>& loop) const;
  // Calls CallHook::left() of every layer. Fails with the first error.
  Future<void> end_memberships() const;
  // Calls CallHook::world_complete() of every layer, until one fails. Returns the error of that layer.
  Result<void> world_complete(const std::vector<std::string>& members) const;
  void clear();  // called when the agent has ended

 private:
  std::vector<std::shared_ptr<CallHook>> hooks_;
  std::vector<MakeContext> contexts_;
  std::vector<ExplainFailure> explanations_;
  Interceptors interceptors_;
  Slots layers_;
};

}  // namespace weft::rpc
