// CallHook: lets a layer above RPC take part in all calls of one agent. It is the extension point of the RPC
// layer, which does not depend on the layers above.
//
// Installed with LayerHooks::add() while the agent is created, and owned by the agent. Thread-safety: each
// function states its thread.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/future.h>

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

}  // namespace weft::rpc
