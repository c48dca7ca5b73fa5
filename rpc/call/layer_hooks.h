// LayerHooks: the hooks of the layers above RPC and the program's interceptors, for the calls of one agent.
//
// Owned by the agent. The layers and interceptors are added before the agent listens and stay the same until
// clear(), so reading them needs no mutex. Thread-safety: add functions and clear() on one thread, while no
// call is in flight; the other functions may be called from any thread.
#pragma once

#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/core/slots.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

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
