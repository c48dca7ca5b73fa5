// AutogradLayer: distributed autograd on one agent. It keeps the passes in which the agent takes part.
//
// There is one for each agent: dist_autograd::layers() creates it, and AutogradLayer::of(agent) returns it.
// As the agent's CallHook, the layer takes part in calls that carry a pass. It answers the backward messages
// of other workers (BackwardService). Thread-safe.
#pragma once

#include <weft/dist_autograd/internal/participant.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/recent_map.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rref/protocol/number_set.h>
#include <weft/rref/rref_layer.h>

#include <map>

namespace weft::dist_autograd {

// The key of the section in a message.
inline constexpr std::string_view section_key = "pass";

// The section "pass" of a request or reply: the pass to which the message belongs.
struct PassSection {
  PassId pass;
  MessageId message;
  std::uint64_t tensors = 0;  // how many of the message's tensors require grad
  bool backward = false;      // true: a message of a backward that is itself recorded (create_graph)
  // If the sender is the origin: its passes below this number have ended. Otherwise 0.
  std::uint64_t oldest = 0;
  // Some worker has hooks on gradients (pass_hooks.h), as far as the sender knows.
  bool wants_finalize = false;
};
WEFT_CODEC(PassSection, pass, message, tensors, backward, oldest, wants_finalize)

// In the slots of a served call and of an outgoing call: the pass to which the call belongs.
struct InPass {
  std::shared_ptr<PassState> pass;
};

class WEFT_EXPORT AutogradLayer final : public rpc::CallHook,
                                        public std::enable_shared_from_this<AutogradLayer> {
 public:
  explicit AutogradLayer(std::shared_ptr<rpc::AgentCore> core);
  static std::shared_ptr<AutogradLayer> of(
      const rpc::CallHost& host);  // failed_precondition without the layer

  // core(): the agent of this layer. peer(): another agent, to call it.
  const std::shared_ptr<rpc::AgentCore>& core() const { return core_; }
  rpc::Peer peer(const rpc::AgentId& agent);
  // Calls a method of another participant's BackwardService, for a pass that both agents have joined.
  template <auto Method, class... Arguments>
    requires(!(rpc::is_modifier<Arguments> || ...))
  auto ask(const rpc::AgentId& agent, const PassId& pass, Arguments&&... arguments) {
    return of_participant(pass, agent,
                          peer(agent).template call<Method>(pass, std::forward<Arguments>(arguments)...));
  }
  template <auto Method, class... Arguments>
  auto ask(const rpc::AgentId& agent, const PassId& pass, const rpc::CallModifier& modifier,
           Arguments&&... arguments) {
    return of_participant(
        pass, agent,
        peer(agent).template call<Method>(modifier, pass, std::forward<Arguments>(arguments)...));
  }

  // Creates a pass of this agent.
  std::shared_ptr<PassState> create();
  // Throws not_found if the pass is not here, and the error that ended it if it failed.
  std::shared_ptr<PassState> find(const PassId& id);
  std::shared_ptr<PassState> find_if_known(const PassId& id);  // null: the pass is not here
  // Finds or creates the pass. Throws an error if the pass has ended. from: the sender of the message that
  // names the pass. oldest: the message's PassSection::oldest, which is ignored unless `from` is the origin.
  std::shared_ptr<PassState> join(const PassId& id, const rpc::AgentId& from, std::uint64_t oldest);
  // Makes the call part of the pass. backward: the call belongs to a backward of the pass that is itself
  // recorded.
  static void enroll(rpc::OutgoingCall& call, const std::shared_ptr<PassState>& pass, bool backward = false);
  // Whether the sender may end the pass here: its origin, and the workers with which this worker exchanged
  // calls of the pass.
  bool may_release(const PassId& id, const rpc::AgentId& sender) const;
  // Ends the pass here, and notifies the workers with which this worker exchanged calls of the pass.
  void release(const PassId& id, std::exception_ptr error);
  std::size_t live_passes() const;
  std::size_t live_backwards() const;  // the number of backwards in which this worker takes part now
  // All passes of this agent with numbers below the result have ended. The result is at most the number of
  // `id`. 0 if `id` is a pass of another agent.
  std::uint64_t oldest_beside(const PassId& id) const;
  // The number of ranges in which the ended passes are stored. Each origin has few ranges, even if many of
  // its passes have ended.
  std::size_t remembered() const;
  // Whether the pass was on this agent and has ended, by release or failure. False for a pass that was never
  // here, or that this agent has forgotten (ended_).
  bool has_ended(const PassId& id) const;

  bool knows(std::string_view section) const override { return section == section_key; }
  void incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) override;
  void nested(rpc::CallContext& parent, rpc::OutgoingCall& child) override;
  void stats(rpc::LayerStats& to) const override;
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;
  void shut_down() override;

 private:
  void notify_released(const rpc::AgentId& to, const PassId& id, const std::string& error, int attempt);

  std::shared_ptr<rpc::AgentCore> core_;
  std::shared_ptr<rref::RRefLayer> references_;  // the layer below; it finds agents by their ids
  mutable rpc::Mutex mutex_;
  std::uint64_t next_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<PassId, std::shared_ptr<PassState>> passes_ WEFT_GUARDED_BY(mutex_);
  // By origin: the ended passes of other agents, which late messages must not create again. Only the latest
  // ranges of the latest origins are kept: a message is late by a few passes. A pass that is created again
  // ends with its sender's part of the pass.
  static constexpr std::size_t max_origins = 4096, max_ranges = 1024;
  rpc::RecentMap<std::uint64_t, rref::protocol::NumberSet> ended_ WEFT_GUARDED_BY(mutex_){max_origins};
  // The errors that ended the latest failed passes: a call that arrives afterwards reports the cause.
  static constexpr std::size_t max_failed = 256;
  rpc::RecentMap<PassId, std::exception_ptr> failed_ WEFT_GUARDED_BY(mutex_){max_failed};
  void check_not_failed(const PassId& id) const WEFT_REQUIRES(mutex_);
  // Whether this agent created the pass.
  bool is_own(const PassId& id) const { return id.origin == core_->id().incarnation; }
};

}  // namespace weft::dist_autograd
