#include <weft/rref/rref_layer.h>

#include <weft/rpc/endpoint/sessions.h>
#include <weft/rref/carried.h>
#include <weft/rref/cycles.h>
#include <weft/rref/listing.h>
#include <weft/rref/protocol_service.h>
#include <weft/rref/rref.h>

namespace weft::rref {
namespace {

rpc::Error lost(rpc::ErrorKind kind, const rpc::AgentId& owner, const RRefId& id, const std::string& why) {
  return rpc::Error(kind, "object " + to_string(id) + " on " + owner.name + ": " + why);
}

constexpr auto leaving_timeout = std::chrono::seconds{5};  // with owners that do not answer

rpc::Error ended() {
  return rpc::Error(rpc::ErrorKind::shut_down, "this agent has shut down", rpc::Execution::not_sent);
}

}  // namespace

Reference::Reference(std::shared_ptr<RRefLayer> layer, RRefId id, std::optional<ForkId> fork,
                     rpc::AgentId owner)
    : about_(std::make_shared<About>(About{std::move(layer), id, std::move(owner)})), fork_(fork) {}

Reference::~Reference() { layer()->drop(*this); }

RRefLayer::RRefLayer(std::shared_ptr<rpc::AgentCore> core)
    : core_(std::move(core)), self_(core_->id()), owned_(self_), used_(self_) {}

std::shared_ptr<RRefLayer> RRefLayer::of(const rpc::CallHost& host) {
  if (host.ended()) throw ended();
  return of(host.layers());
}

std::shared_ptr<RRefLayer> RRefLayer::of(const rpc::Slots& layers) {
  auto layer = layers.share<RRefLayer>();
  if (layer == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "this agent was created without the RRef layer: pass rref::layers() to its constructor");
  return layer;
}

rpc::Peer RRefLayer::peer(const rpc::AgentId& agent, const rpc::CallOptions& options) {
  std::vector<std::string> addresses;
  // The peer's own statement takes precedence over reports of others.
  if (agent != self_ && core_->routes().addresses_of(agent.name).empty()) {
    rpc::MutexLock lock(mutex_);
    if (const auto reported = addresses_.find(agent); reported != addresses_.end())
      addresses = reported->second;
  }
  return rpc::Peer(core_, core_->routes().to_name(agent.name, addresses)).with(options).only(agent);
}

std::vector<std::string> RRefLayer::addresses_of(const rpc::AgentId& agent) const {
  auto known = agent == self_ ? core_->stated_addresses({}) : core_->routes().addresses_of(agent.name);
  if (!known.empty()) return known;
  rpc::MutexLock lock(mutex_);
  const auto reported = addresses_.find(agent);
  return reported == addresses_.end() ? known : reported->second;
}

std::exception_ptr RRefLayer::fault(protocol::Fault fault, const std::string& text, const rpc::AgentId& owner,
                                    const RRefId& id) const {
  using protocol::Fault;
  switch (fault) {
    case Fault::none:
      return nullptr;
    case Fault::creation_failed:
      return std::make_exception_ptr(
          lost(rpc::ErrorKind::failed_precondition, owner, id, "its creation failed: " + text));
    case Fault::owner_lost:
      // An owner that ends because its job has failed is not the cause.
      if (const auto job = core_->job_error()) return std::make_exception_ptr(*job);
      return std::make_exception_ptr(
          lost(rpc::ErrorKind::owner_lost, owner, id, text.empty() ? "its owner is gone" : text));
    case Fault::lease_lost:
      return std::make_exception_ptr(
          lost(rpc::ErrorKind::lease_lost, owner, id, "its owner declared this agent dead"));
    case Fault::refused:
      return std::make_exception_ptr(lost(
          rpc::ErrorKind::not_found, owner, id,
          "the object does not exist: it was destroyed before this reference arrived, or never created"));
    case Fault::released:
      return std::make_exception_ptr(
          lost(rpc::ErrorKind::shut_down, owner, id, "this agent has left and has released its references"));
  }
  return nullptr;
}

std::exception_ptr RRefLayer::fault_of(const Reference& reference) const {
  const auto fork = used_.find(*reference.fork());
  if (!fork || fork->fault == protocol::Fault::none) return nullptr;
  if (reference.about()->refusal != nullptr) return reference.about()->refusal;
  return fault(fork->fault, fork->text, fork->owner, fork->rref);
}

// --- References ---

ReferencePtr RRefLayer::adopt_local(rpc::KeptValue value, std::string type, std::string site,
                                    std::shared_ptr<StoredObject> whole) {
  if (core_->ended()) throw ended();
  auto stored = whole != nullptr ? std::make_shared<StoredObject>(std::move(value), std::move(whole))
                                 : std::make_shared<StoredObject>(std::move(value), handler_threads());
  sizes_.measure(*stored);
  RRefId id;
  {
    rpc::MutexLock lock(mutex_);
    id = owned_.create_local({std::move(type), std::move(site), now()});
  }
  auto reference = std::make_shared<Reference>(shared_from_this(), id, std::nullopt, self_);
  objects_.settle(id, std::move(stored));
  return reference;
}

ReferencePtr RRefLayer::create(const rpc::AgentId& owner, std::string type, std::string site,
                               rpc::OutgoingCall& call, std::optional<std::string> name) {
  if (core_->ended()) throw ended();
  protocol::Handover handover{{}, {}, self_, self_, true};
  if (owner == self_) {
    // Created by a call to this agent itself: the hold of this handle exists from the start.
    rpc::MutexLock lock(mutex_);
    handover.rref = owned_.create_local({std::move(type), site, now()}, protocol::ObjectState::creating);
    unbegun_.insert(handover.rref);
  } else {
    const auto made =
        act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) { return used_.create(owner, out); });
    if (const auto job = made ? std::nullopt : core_->job_error()) throw *job;
    if (!made)
      throw rpc::Error(rpc::ErrorKind::owner_lost, to_string(owner) + " is gone", rpc::Execution::not_sent);
    handover = *made;
  }
  const auto fork = owner == self_ ? std::nullopt : std::optional(handover.fork);
  auto reference = std::make_shared<Reference>(shared_from_this(), handover.rref, fork, owner);
  Carried::of(call.message(), shared_from_this())
      ->set_result(reference, handover, std::move(site), std::move(name));
  return reference;
}

void RRefLayer::target(const ReferencePtr& reference, rpc::OutgoingCall& call) {
  if (core_->ended()) throw ended();
  Carried::of(call.message(), shared_from_this())->set_target(reference);
}

rpc::Result<RRefLayer::Reply> RRefLayer::explain(rpc::Result<Reply> reply, const About& object) {
  if (reply.ok()) return reply;
  const RRefLayer& layer = *object.layer;
  try {
    std::rethrow_exception(reply.error());
  } catch (const rpc::RemoteError& remote) {
    if (remote.kind() != rpc::ErrorKind::failed_precondition) return reply;
    rpc::MutexLock lock(layer.mutex_);
    if (object.refusal != nullptr) return object.refusal;  // the call waited for a creation that failed
  } catch (const rpc::Error& own) {
    // unavailable: the connection had ended already, and no agent accepts another connection. A call with
    // fail_fast also ends like that if only the connection is lost.
    const bool ended = own.kind() == rpc::ErrorKind::peer_lost || own.kind() == rpc::ErrorKind::unavailable;
    const bool gone = (ended && !layer.core_->sessions().knows(object.owner)) ||
                      (own.kind() == rpc::ErrorKind::shut_down && !layer.core_->draining());
    if (gone && !layer.core_->job_error())
      return std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::owner_lost,
                     "object " + to_string(object.id) + " on " + object.owner.name + ": " + own.what(),
                     own.execution()));
  } catch (...) {
  }
  return reply;
}

void RRefLayer::when_alive(const ReferencePtr& reference, StoredObjects::Done done) {
  const RRefId id = reference->id();
  // A wait holds the object.
  if (objects_.when_alive(id, [reference, done = std::move(done)](StoredObjects::Found found) mutable {
        done(std::move(found));
      }))
    return;
  std::string failure;
  {
    rpc::MutexLock lock(mutex_);
    failure = owned_.failure(id);
  }
  // The creation failed before this wait.
  if (!failure.empty()) objects_.fail(id, fault(protocol::Fault::creation_failed, failure, self_, id));
}

void RRefLayer::when_confirmed(const ReferencePtr& reference, Waiter done) {
  std::exception_ptr error;
  if (!reference->is_owner()) {
    rpc::MutexLock lock(mutex_);
    const auto fork = used_.find(*reference->fork());
    if (ended_) {
      error = std::make_exception_ptr(ended());
    } else if (fork && fork->fault == protocol::Fault::none && fork->stage == protocol::Stage::pending) {
      confirmations_[*reference->fork()].push_back(std::move(done));
      return;
    } else {
      error = fault_of(*reference);
    }
  }
  done(error);
}

bool RRefLayer::confirmed(const Reference& reference) const {
  if (reference.is_owner()) return true;
  rpc::MutexLock lock(mutex_);
  const auto fork = used_.find(*reference.fork());
  return fork && fork->stage != protocol::Stage::pending && fork->fault == protocol::Fault::none;
}

void RRefLayer::drop(const Reference& reference) {
  act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    if (ended_) return;
    if (reference.fork()) {
      used_.release(*reference.fork(), out);
    } else {
      owned_.unhold(reference.id(), out);
    }
  });
}

std::uint64_t RRefLayer::encode(rpc::OutgoingMessage& message, const ReferencePtr& reference) {
  const auto& layer = reference->layer();
  if (message.layers() == nullptr || of(*message.layers()) != layer)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "an RRef of agent " + layer->self_.name + " in a message of another agent: hand it over by a call");
  return Carried::of(message, layer)->add(message, reference);
}

ReferencePtr RRefLayer::decode(rpc::IncomingMessage& message, std::uint64_t index) {
  const auto* received = message.slots().find<Received>();
  if (received == nullptr)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "an RRef outside of the RRef layer: its sender or this agent was created without rref::layers()");
  if (received->failed != nullptr) std::rethrow_exception(received->failed);
  if (index >= received->references.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "an RRef that is not part of its message");
  return received->references[index];
}

std::vector<protocol::LiveObject> RRefLayer::live_objects() const {
  rpc::MutexLock lock(mutex_);
  return owned_.live_objects();
}

std::vector<protocol::ForkView> RRefLayer::live_forks() const {
  rpc::MutexLock lock(mutex_);
  return used_.live_forks();
}

// --- What the tables decide ---

void RRefLayer::perform(protocol::Actions actions) {
  for (auto& action : actions) {
    std::visit(
        [this]<class A>(A& what) {
          using namespace protocol;
          if constexpr (std::is_same_v<A, ForkConfirmed>) {
            wake(what.fork, nullptr);
          } else if constexpr (std::is_same_v<A, ForkFailed>) {
            std::optional<ForkView> fork;
            {
              rpc::MutexLock lock(mutex_);
              fork = used_.find(what.fork);
            }
            wake(what.fork, fault(what.fault, what.text, fork ? fork->owner : rpc::AgentId{},
                                  fork ? fork->rref : RRefId{}));
          } else if constexpr (std::is_same_v<A, ObjectReady>) {
            // finish_creation() has completed the waits.
          } else if constexpr (std::is_same_v<A, ObjectFailed>) {
            objects_.fail(what.rref, fault(Fault::creation_failed, what.failure, self_, what.rref));
          } else if constexpr (std::is_same_v<A, DeleteObject>) {
            objects_.remove(what.rref);
          } else if constexpr (std::is_same_v<A, WatchAgent>) {
            watch(what.agent, rpc::later(now(), core_->options().handshake_timeout));
          } else {
            send(std::move(what.to), std::move(what.message));
          }
        },
        action);
  }
}

void RRefLayer::wake(const ForkId& fork, const std::exception_ptr& error) {
  std::vector<Waiter> waiters;
  {
    rpc::MutexLock lock(mutex_);
    if (auto node = confirmations_.extract(fork)) waiters = std::move(node.mapped());
  }
  for (auto& waiter : waiters) waiter(error);
}

// --- Ends ---

// The peer may have returned before it noticed its absence, and may hold references that this agent has
// released.
void RRefLayer::connection_made(const rpc::AgentId& peer) {
  {
    rpc::MutexLock lock(mutex_);
    if (!owned_.is_dropped(peer)) return;
  }
  notify_taken_for_gone(peer);
}

void RRefLayer::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  if (peer == self_) return;
  act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    if (ended_ || !owned_.drop_agent(peer, out)) return;
    addresses_.erase(peer);
    // The peer continues without this agent, which it considered dead.
    if (reason.kind() == rpc::ErrorKind::lease_lost) used_.lease_lost(peer, out);
    used_.agent_lost(peer, out);
  });
}

rpc::Future<void> RRefLayer::leaving() {
  rpc::Promise<void> promise;
  auto future = promise.future();
  auto loop = core_->pick_loop();
  loop->post([loop, weak = weak_from_this()] {
    loop->schedule(loop->now() + leaving_timeout, [weak] {
      if (const auto self = weak.lock()) self->announce_leaving(true);
    });
  });
  act([&](protocol::Actions& out) WEFT_REQUIRES(mutex_) {
    leaving_.push_back(std::move(promise));     // with used_.leave(): an act() in between would complete it
    if (!core_->job_error()) used_.leave(out);  // otherwise no owner waits for it
  });
  return future;
}

void RRefLayer::announce_leaving(bool timed_out) {
  std::vector<rpc::Promise<void>> done;
  {
    rpc::MutexLock lock(mutex_);
    if (!timed_out && !ended_ && used_.has_ending_forks()) return;
    done.swap(leaving_);
  }
  for (auto& one : done) one.complete(rpc::Result<void>{});
}

void RRefLayer::shut_down() {
  std::map<ForkId, std::vector<Waiter>> confirmations;
  std::map<std::uint64_t, ReferencePtr> transit;
  std::vector<protocol::LiveObject> left;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = true;
    if (!core_->job_error()) left = owned_.live_objects();
    transit.swap(transit_);
    confirmations.swap(confirmations_);
  }
  for (const auto& object : left) {
    std::string text = "object " + to_string(object.id) + " of type " + object.info.type;
    if (!object.info.site.empty()) text += " made at " + object.info.site;
    if (object.forks.empty()) {
      core_->log().write(rpc::LogLevel::info, text + " was held by this agent to the end",
                         {{rpc::log_fields::object, to_string(object.id)}});
      continue;
    }
    text += " is still held by";
    for (const auto& [fork, user] : object.forks) text += ' ' + user.name;
    core_->log().write(rpc::LogLevel::warning, "leak: " + text,
                       {{rpc::log_fields::object, to_string(object.id)}});
  }
  announce_leaving();
  const auto error = std::make_exception_ptr(ended());
  for (auto& [fork, waiters] : confirmations)
    for (auto& waiter : waiters) waiter(error);
  // Calls of other agents wait for objects of this agent: their error is that the owner is lost.
  const auto lost =
      std::make_exception_ptr(rpc::Error(rpc::ErrorKind::owner_lost, self_.name + " has shut down"));
  named_.end(lost);
  objects_.end(lost);
}

}  // namespace weft::rref
