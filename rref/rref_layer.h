// RRefLayer: the RRef layer of one agent. It owns the two tables of the ownership protocol, the objects that
// live on this agent, the waits for the creation of objects, and the waits for the confirmation of forks. It
// executes the actions of the tables.
//
// There is one for each agent: rref::layers() creates it, and RRefLayer::of() returns it. It takes part in
// calls as the agent's CallHook. Thread-safe: one mutex guards the tables; actions are executed, waiters run
// and values are destroyed outside it. References may outlive the agent: after its end, all their operations
// fail with shut_down.
#pragma once

#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rref/named_objects.h>
#include <weft/rref/object_sizes.h>
#include <weft/rref/protocol/owner_table.h>
#include <weft/rref/protocol/user_table.h>
#include <weft/rref/reference.h>
#include <weft/rref/section.h>
#include <weft/rref/stored_objects.h>

#include <map>
#include <set>

namespace weft::rref {

class CreationSink;
class Gate;

class WEFT_EXPORT RRefLayer final : public rpc::CallHook, public std::enable_shared_from_this<RRefLayer> {
 public:
  // Called once. null: the awaited event has happened. Otherwise: the error that prevents it.
  using Waiter = rpc::UniqueFunction<void(std::exception_ptr)>;
  // The reply of a call, undecoded.
  using Reply = rpc::PendingCall::Reply;

  // For rref::layers().
  explicit RRefLayer(std::shared_ptr<rpc::AgentCore> core);

  // failed_precondition if the agent was created without this layer.
  static std::shared_ptr<RRefLayer> of(const rpc::CallHost& host);
  static std::shared_ptr<RRefLayer> of(const rpc::Slots& layers);

  // The agent of this layer, and its handler threads.
  const std::shared_ptr<rpc::AgentCore>& core() const { return core_; }
  std::shared_ptr<rpc::Executor> handler_threads() const { return {core_, &core_->handlers()}; }
  // A peer for calls to an agent. Calls of the layers themselves use the default, without a deadline. Calls
  // of the program use the program's options.
  rpc::Peer peer(const rpc::AgentId& agent, const rpc::CallOptions& options = {.timeout = rpc::no_timeout});

  // --- References ---
  // Makes a reference to a value on this agent. whole: the object that the value is a part of; null: none.
  ReferencePtr adopt_local(rpc::KeptValue value, std::string type, std::string site,
                           std::shared_ptr<StoredObject> whole = nullptr);
  // Makes a reference to a new object at `owner`. Adds the part about the object to `call`, which creates the
  // object, or whose result becomes the object. site: the location in the program, for the leak report; may
  // be empty.
  ReferencePtr create(const rpc::AgentId& owner, std::string type, std::string site, rpc::OutgoingCall& call,
                      std::optional<std::string> name = {});
  // Adds to a call through a reference the part that names the object. If the reference's fork can no longer
  // be used, throws the reason, for example owner_lost.
  void target(const ReferencePtr& reference, rpc::OutgoingCall& call);
  // Replaces the error of a call through a reference by an error about the object: owner_lost instead of
  // peer_lost.
  static rpc::Result<Reply> explain(rpc::Result<Reply> reply, const About& object);
  // Passes the object behind a reference to `done` once it is alive. This agent must own it.
  void when_alive(const ReferencePtr& reference, StoredObjects::Done done);
  // Calls `done` when the owner has confirmed the reference's fork, or with the error that ended the fork.
  void when_confirmed(const ReferencePtr& reference, Waiter done);
  bool confirmed(const Reference& reference) const;
  void drop(const Reference& reference);

  // --- RRefs as values: called by Codec<RRef<T>> ---
  static std::uint64_t encode(rpc::OutgoingMessage& message, const ReferencePtr& reference);
  static ReferencePtr decode(rpc::IncomingMessage& message, std::uint64_t index);

  // --- Reports (listing.h and cycles.h are for programs) ---
  std::vector<protocol::LiveObject> live_objects() const;
  std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> stored_objects() const {
    return objects_.alive();
  }
  std::vector<std::shared_ptr<StoredObject>> named_objects() const { return named_.alive(); }
  ObjectSizes& sizes() { return sizes_; }
  rpc::Clock::time_point now() const { return core_->loops().front()->coarse_now(); }
  std::vector<protocol::ForkView> live_forks() const;  // forks of other agents' objects

  // --- CallHook ---
  bool knows(std::string_view section) const override { return section == section_key; }
  void incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) override;
  void replied(rpc::IncomingMessage& message, const rpc::AgentId& from) override;
  void connection_made(const rpc::AgentId& peer) override;
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;
  // Completes when the owners know of all released references, or after a few seconds.
  rpc::Future<void> leaving() override;
  void stats(rpc::LayerStats& to) const override;  // ReferenceStats, each as "rref.…"
  void shut_down() override;

  // The object on which a served call runs. The slots of the call contain it.
  struct Target {
    ReferencePtr held;  // held until the call has completed
    std::shared_ptr<StoredObject> object;
    bool runs_on_it = false;  // false: a method of another service, for which the object is an argument
  };

 private:
  friend class Carried;
  friend class CreationSink;
  friend struct ProtocolService;

  // The references that a message brought, in the order of its section. The message's slots contain them.
  struct Received {
    std::vector<ReferencePtr> references;
    std::exception_ptr failed;  // the error of the first reference that could not be accepted
  };

  // Runs f with the mutex locked. Then, with the mutex unlocked, executes the actions that the tables have
  // requested.
  template <class F>
  auto act(F&& f);
  void perform(protocol::Actions actions);
  void announce_leaving(bool timed_out = false);
  void wake(const ForkId& fork, const std::exception_ptr& error);
  template <class Message>
  void send(rpc::AgentId to, Message message);
  void send(rpc::AgentId to, protocol::ForkDelete message);  // collects the message for send_deletes()
  void send_deletes(const rpc::AgentId& to);
  bool drop_unreachable(const rpc::AgentId& to, const std::exception_ptr& error);
  void notify_taken_for_gone(const rpc::AgentId& to);
  void watch(const rpc::AgentId& agent, rpc::Clock::time_point timeout);
  void later(rpc::Callback job);  // runs the job on a loop, after a short time

  // The receiving side (incoming.cc).
  std::shared_ptr<CreationSink> accept_creation(const RRefSection& section, rpc::IncomingCall& call);
  Received receive(const RRefSection& section, const rpc::AgentId& from);
  void resolve_target(const protocol::Handover& target, const std::shared_ptr<rpc::IncomingCall>& call,
                      const std::shared_ptr<Gate>& gate);
  void fetch_arguments(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback next);
  void begin(const std::shared_ptr<rpc::IncomingCall>& call, std::shared_ptr<CreationSink> creation,
             const std::optional<std::string>& name, rpc::Callback next);
  void finish_creation(const RRefId& id, StoredObjects::Found object);

  std::vector<std::string> addresses_of(const rpc::AgentId& agent) const;
  std::exception_ptr fault_of(const Reference& reference) const WEFT_REQUIRES(mutex_);
  std::exception_ptr fault(protocol::Fault fault, const std::string& text, const rpc::AgentId& owner,
                           const RRefId& id) const;

  const std::shared_ptr<rpc::AgentCore> core_;
  const rpc::AgentId self_;
  StoredObjects objects_;
  NamedObjects named_;
  ObjectSizes sizes_;

  mutable rpc::Mutex mutex_;
  protocol::OwnerTable owned_ WEFT_GUARDED_BY(mutex_);
  protocol::UserTable used_ WEFT_GUARDED_BY(mutex_);
  std::map<ForkId, std::vector<Waiter>> confirmations_ WEFT_GUARDED_BY(mutex_);
  // The addresses of owners, from the agents that handed their RRefs over.
  std::map<rpc::AgentId, std::vector<std::string>> addresses_ WEFT_GUARDED_BY(mutex_);
  // The references within calls from this agent to itself.
  std::map<std::uint64_t, ReferencePtr> transit_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t next_transit_ WEFT_GUARDED_BY(mutex_) = 0;
  // Objects to create, by calls of this agent to itself that have not arrived yet.
  std::set<RRefId> unbegun_ WEFT_GUARDED_BY(mutex_);
  std::vector<rpc::Promise<void>> leaving_ WEFT_GUARDED_BY(mutex_);
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;

  rpc::Mutex deletes_mutex_;
  // The messages that the next turn of a loop sends.
  std::map<rpc::AgentId, std::vector<protocol::ForkDelete>> deletes_ WEFT_GUARDED_BY(deletes_mutex_);
};

template <class F>
auto RRefLayer::act(F&& f) {
  protocol::Actions actions;
  rpc::MutexLock lock(mutex_);
  if constexpr (std::is_void_v<decltype(f(actions))>) {
    f(actions);
    const bool leaving = !leaving_.empty();
    lock.unlock();
    perform(std::move(actions));
    if (leaving) announce_leaving();
  } else {
    auto result = f(actions);
    const bool leaving = !leaving_.empty();
    lock.unlock();
    perform(std::move(actions));
    if (leaving) announce_leaving();
    return result;
  }
}

}  // namespace weft::rref
