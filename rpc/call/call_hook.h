// CallHook: how a layer above RPC takes part in all calls of one agent. LayerHooks installs it when the agent
// is made.
//
// It is the extension point of the RPC layer, which names no layer above it. Thread-safety: each function
// states its thread.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/future.h>

#include <map>
#include <string>

namespace weft::rpc {

// Figures of layers by LAYER.WHAT ("rref.objects").
using LayerFigures = std::map<std::string, std::uint64_t>;

// A layer's part in all calls of one agent, installed when the agent is made.
class WEFT_EXPORT CallHook {
 public:
  virtual ~CallHook() = default;

  // The sections that this layer reads; a required section that no layer knows is `unsupported`.
  virtual bool knows(std::string_view section) const = 0;

  // A request with sections, on its link's loop, before anything is decoded. Calls next once, now or later
  // and on any thread, or fails the call. Layers are asked in the reverse order of their installation: the
  // highest first.
  virtual void incoming(std::shared_ptr<IncomingCall> call, Callback next) {
    (void)call;
    next();
  }
  // A reply with sections, on its link's loop, before the caller's own parts read it.
  virtual void replied(IncomingMessage& message, const AgentId& from) { (void)message, (void)from; }
  // A call that a handler makes in the name of the call that it serves (peer.with(call)).
  virtual void nested(CallContext& parent, OutgoingCall& child) { (void)parent, (void)child; }

  // Adds this layer's figures to its agent's stats (stats.h). Any thread; must not block.
  virtual void figures(LayerFigures& to) const { (void)to; }

  // A connection to a peer came about; it need not be the first. On its loop, before any call by it is
  // served.
  virtual void connection_made(const AgentId& peer) { (void)peer; }
  // A connection to a peer ended, and what was on its way by it is lost; it need not be the last. Its number
  // is IncomingCall::connection(). Any thread; must not block.
  virtual void connection_gone(std::uint64_t connection, const AgentId& peer, const Error& reason) {
    (void)connection, (void)peer, (void)reason;
  }
  // The last connection to this incarnation of a peer ended: orderly (shut_down), or not. Any thread; must
  // not block.
  virtual void peer_gone(const AgentId& peer, const Error& reason) { (void)peer, (void)reason; }
  // The job says that this incarnation of a peer is dead, whether there was a connection to it or not; the
  // end of a connection is reported separately. Any thread; must not block.
  virtual void peer_forgotten(const AgentId& peer, const Error& reason) { (void)peer, (void)reason; }
  // All members of a job of fixed size have joined, this one included. An exception fails the wait for them.
  // Any thread; must not block.
  virtual void world_complete(const std::vector<std::string>& members) { (void)members; }
  // A job of fixed size has lost a member: no more calls are sent. Any thread; must not block.
  virtual void world_failed(const Error& error) { (void)error; }
  // A peer ends because its job has failed with this error: before its connection's end is reported. On its
  // loop; must not block.
  virtual void peer_world_failed(const AgentId& peer, const Error& error) { (void)peer, (void)error; }
  // The agent begins to drain. Any thread; must not block.
  virtual void draining() {}
  // Before the agent says goodbye: what this layer still has to tell others.
  virtual Future<void> leaving() { return Future<void>::made(Result<void>{}); }
  // The agent ends: pending work is failed, references to it dropped.
  virtual void shut_down() {}
};

}  // namespace weft::rpc
